"""Images in tar archives, on the disk and behind HTTP: the same as in files, whoever wrote the archive."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import socket
import tarfile
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from PIL import Image

import wingbar
from wingbar.cli import main
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.data import shards
from wingbar.data.batches import Batches
from wingbar.data.cache import Reporter
from wingbar.data.contents import content_hashes
from wingbar.data.datasets import load
from wingbar.data.decoding import Unreadable, decode_file
from wingbar.data.guess import guess, read_splits
from wingbar.data.listing import Listing
from wingbar.data.own import flat
from wingbar.data.placement import place
from wingbar.data.readers import read
from wingbar.data.shards import find_shards, inside, is_there
from wingbar.errors import UserError
from wingbar.evaluate.doctor.check import check
from wingbar.models.weights import save_encoder
from wingbar.train.images import open_source
from wingbar.train.provenance import check_unreadable
from wingbar.use.formats import open_embeddings

CPU = torch.device("cpu")
COUNT, EACH = 24, 4  # images, and of them in an archive


def picture(number: int) -> bytes:
    pixels = torch.randint(
        256, (20 + number, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number)
    )
    written = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(written, format="PNG")
    return written.getvalue()


PICTURES = [picture(number) for number in range(COUNT)]


def archive(path: Path, members: dict[str, bytes], *, kind: int = tarfile.PAX_FORMAT) -> Path:
    """A whole tar archive, which looks old enough to be remembered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as file:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))
    os.utime(path, (1e9, 1e9))
    return path


def samples(first: int) -> dict[str, bytes]:
    """What one archive holds: EACH pictures and their classes."""
    members = {}
    for number in range(first, first + EACH):
        members[f"{number:04d}.png"] = PICTURES[number]
        members[f"{number:04d}.cls"] = str(number % 3).encode()
    return members


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Six archives with all pictures."""
    root = tmp_path_factory.mktemp("shards")
    for first in range(0, COUNT, EACH):
        archive(root / f"train-{first // EACH:03d}.tar", samples(first))
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """The same pictures as files."""
    root = tmp_path_factory.mktemp("photos")
    for number, content in enumerate(PICTURES):
        (root / f"{number:04d}.png").write_bytes(content)
    return root


class Server:
    """A file server that sends parts, and can be told to misbehave."""

    def __init__(self, root: Path) -> None:
        self.asked: list[tuple[str, int]] = []  # path and bytes sent
        self.failing, self.parts, self.elsewhere = 0, True, ""
        server = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, root / self.path.lstrip("/"))

            def log_message(self, *words: object) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, path: Path) -> None:
        if self.failing > 0:
            self.failing -= 1
            return request.send_error(503)
        if self.elsewhere:
            request.send_response(302)
            request.send_header("Location", f"{self.elsewhere}/{path.name}")
            return request.end_headers()
        if not path.is_file():
            return request.send_error(404)
        content, wanted = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        start, last = (int(wanted[1]), int(wanted[2])) if wanted and self.parts else (0, len(content) - 1)
        part = content[start : last + 1]
        request.send_response(206 if self.parts else 200)
        request.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(part)))
        request.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        request.end_headers()
        self.asked.append((path.name, len(part)))
        request.wfile.write(part)


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[[Path], Server]]:
    monkeypatch.setattr(shards, "RETRIES", (0.0, 0.0))
    servers = []

    def start(root: Path) -> Server:
        servers.append(Server(root))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def contents(listing: Listing) -> list[bytes]:
    found = [inside(path) for path in listing.paths]
    return [piece.read() for piece in found if piece is not None]


# --- what is in an archive -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("remote", [False, True], ids=["disk", "http"])
def test_images_and_classes_are_those_that_webdataset_reads(remote, tmp_path, serve):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "train-%03d.tar"), maxcount=7, verbose=0) as writer:
        for number, content in enumerate(PICTURES):
            writer.write({"__key__": f"a.folder/{number:04d}", "png": content, "cls": str(number % 5).encode()})
    pattern = "train-{000..003}.tar"
    with warnings.catch_warnings(action="ignore"):  # it leaves files open
        theirs = [
            (sample["__key__"], sample["png"], sample["cls"].decode())
            for sample in webdataset.WebDataset(str(tmp_path / pattern), shardshuffle=False, empty_check=False)
        ]
        gc.collect()
    root = f"{serve(tmp_path).url}/{pattern}" if remote else tmp_path
    listing = read("shards", root, "train", test_fraction=0.0)
    labels = [listing.classes[label] for label in listing.labels.tolist()]
    keys = [name.partition("/")[2].removesuffix(".png") for name in listing.names]
    assert sorted(zip(keys, contents(listing), labels, strict=True)) == sorted(theirs) and len(keys) == COUNT


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_of_every_kind_are_read_as_python_reads_them(kind, tmp_path):
    names = ["a.png", "é.jpg", f"{'folder' * 12}/{'x' * 60}.png", "deep/er/b.PNG", "./c.png", "no.txt", ".hidden.png"]
    names += [] if kind == tarfile.USTAR_FORMAT else [f"{'long/' * 60}{'y' * 120}.webp"]
    path = archive(tmp_path / "a.tar", {name: os.urandom(at * 300) for at, name in enumerate(names)}, kind=kind)
    with tarfile.open(path) as file:
        theirs = {
            member.name.removeprefix("./"): file.extractfile(member).read()
            for member in file
            if member.name.endswith(("png", "jpg", "PNG", "webp")) and not member.name.startswith(".h")
        }
    found = shards.open_shard(str(path))
    assert {name: inside(path / name).read() for name in found.names} == theirs and not found.odd


def test_a_size_in_binary_is_read(tmp_path):
    """Of files beyond 8 GB, and as some programs write all."""
    path = archive(tmp_path / "a.tar", {"a.png": PICTURES[0]}, kind=tarfile.GNU_FORMAT)
    head = bytearray(path.read_bytes())
    head[124:136] = b"\x80" + len(PICTURES[0]).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head[:512]):06o}\0 ".encode()
    path.write_bytes(head)
    assert inside(path / "a.png").read() == PICTURES[0]


@pytest.mark.parametrize(
    ("members", "names", "classes"),
    [
        ({"1.png": b"x", "1.seg.png": b"x", "2.png": b"x", "2.json": b"{}"}, ["1.png", "2.png"], ()),
        ({"Black.Footed.1.png": b"x", "Black.Footed.2.png": b"x"}, ["Black.Footed.1.png", "Black.Footed.2.png"], ()),
        ({"1.jpg": b"x", "1.png": b"mask"}, ["1.jpg"], ()),
        ({"n1/1.png": b"x", "n2/1.png": b"x"}, ["n1/1.png", "n2/1.png"], ("n1", "n2")),
        ({"all/n1/1.png": b"x", "all/n2/1.png": b"x"}, ["all/n1/1.png", "all/n2/1.png"], ("n1", "n2")),
        ({"all/1.png": b"x", "all/2.png": b"x"}, ["all/1.png", "all/2.png"], ()),
        (
            {"1.png": b"x", "1.json": b'{"label": 10}', "2.png": b"x", "2.json": b'{"cls": 9}'},
            ["1.png", "2.png"],
            ("9", "10"),
        ),
        ({"1.png": b"x", "1.cls": b"owl\n", "2.png": b"x", "2.cls": b"bat"}, ["1.png", "2.png"], ("bat", "owl")),
    ],
)
def test_samples_have_one_image_and_a_class_if_somebody_says_it(members, names, classes, tmp_path):
    archive(tmp_path / "a.tar", members)
    listing = read("shards", tmp_path, "train", test_fraction=0.0)
    assert [name.removeprefix("a.tar/") for name in listing.names] == names and listing.classes == classes


def test_json_that_would_break_the_parser_is_no_label(tmp_path):
    deep, long = b"[" * 100_000, b'{"label": ' + b"9" * 5000 + b"}"
    archive(tmp_path / "a.tar", {"1.png": b"x", "1.json": deep, "2.png": b"x", "2.json": long})
    listing = read("shards", tmp_path, "train", test_fraction=0.0)
    assert len(listing.names) == 2 and listing.classes == ()


def test_half_of_the_labels_is_refused(tmp_path):
    archive(tmp_path / "a.tar", {"1.png": b"x", "1.cls": b"3", "2.png": b"x"})
    with pytest.raises(UserError, match=r"1 of 2 images in .* have no label; label all of them or none"):
        read("shards", tmp_path, "train")


@pytest.mark.parametrize(
    "names", [("train-0.tar", "val-0.tar"), ("train/0.tar", "test/0.tar"), ("my_train_1.tar", "my_test_1.tar")]
)
def test_archives_are_train_and_test_by_their_names_and_folders(names, tmp_path):
    for first, name in zip((0, EACH), names, strict=True):
        archive(tmp_path / name, samples(first))
    assert guess(tmp_path) == "shards"
    splits = read_splits("shards", tmp_path)
    assert [name.partition(".tar/")[2] for name in splits["test"].names] == [f"{n:04d}.png" for n in range(4, 8)]
    assert [name.partition(".tar/")[2] for name in splits["train"].names] == [f"{n:04d}.png" for n in range(4)]
    assert splits["train"].classes == splits["test"].classes == ("0", "1", "2")


def test_images_beside_an_archive_are_what_is_read(tmp_path):
    """Published sets are unpacked beside the archive that they came in."""
    archive(tmp_path / "images.tar", samples(0))
    (tmp_path / "a.png").write_bytes(PICTURES[0])
    assert guess(tmp_path) == "flat" and flat(tmp_path, "train").names == ("a.png",)


def test_a_folder_that_is_called_like_an_archive_is_a_folder(tmp_path):
    (tmp_path / "a.tar").mkdir()
    (tmp_path / "a.tar" / "a.png").write_bytes(PICTURES[0])
    assert read("flat", tmp_path, "train").names == ("a.tar/a.png",) and inside(tmp_path / "a.tar" / "a.png") is None


def test_patterns_are_expanded_as_webdataset_does(tmp_path):
    braceexpand = pytest.importorskip("braceexpand").braceexpand
    for pattern in ("a.tar", "t-{000..012}.tar", "{train,val}-{8..11}.tar", "{a,b,c}-{1..3}{x,y}.tar"):
        assert sorted(shards._expanded(pattern)) == sorted(braceexpand(pattern)), pattern
    for bomb in ("{0..999999999}.tar", "{0..9}" * 9 + ".tar"):
        with pytest.raises(UserError, match="too many archives"):
            find_shards(f"http://127.0.0.1/{bomb}")
    assert not is_there(tmp_path / "{a,b}.tar")
    with pytest.raises(UserError, match="braces in braces"):
        find_shards(f"{tmp_path}/{{a,b{{1..3}}}}.tar")


# --- the same as files -----------------------------------------------------------------------------------------------


def bits(store, steps, **options: int) -> list[list[bytes]]:
    """Everything in the batches of these steps."""

    def view(images: torch.Tensor, aspect: torch.Tensor, index, generator: torch.Generator) -> tuple[torch.Tensor]:
        return (images * torch.rand(len(images), 1, 1, 1, generator=generator) * aspect[:, None, None, None],)

    batches = Batches(store, view, lambda images, aspect: images.float(), size=6, seed=1, **options)
    made = [part for step in steps for part in batches(step)]
    return [[tensor.numpy().tobytes() for tensor in (part.image, *part.views, part.index)] for part in made]


def rows(store, steps, **options: int) -> list[list[int]]:
    """Which images are in these batches."""
    return [torch.frombuffer(bytearray(part[-1]), dtype=torch.int64).tolist() for part in bits(store, steps, **options)]


def streamed(root: Path | str, *, cache: Path | None = None):
    return place(load(read("flat", root, "train"), side=16, streamed=True, cache=cache), CPU, placement="streamed")


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "http"])
def test_batches_have_the_bits_of_those_from_files_also_in_the_middle_of_an_epoch(remote, folder, photos, serve):
    root = f"{serve(folder).url}/train-{{000..005}}.tar" if remote else folder
    whole = bits(streamed(photos), range(10))
    assert bits(streamed(root), range(10)) == whole
    assert bits(streamed(root), range(6, 10)) == whole[6:]  # whoever goes on at step 6, of 4 an epoch


def test_ranks_share_an_epoch_of_archives_without_overlap(folder):
    store = streamed(folder)
    shares = [rows(store, range(4), rank=rank, ranks=3) for rank in range(3)]
    together = [[row for share in shares for row in share[step]] for step in range(4)]
    assert together == rows(store, range(4)) and sorted(row for step in together for row in step) == list(range(COUNT))


def test_a_rank_reads_its_own_rows_and_no_others(folder, serve):
    server = serve(folder)
    store = streamed(f"{server.url}/train-{{000..005}}.tar")
    server.asked.clear()
    store.images.expect([])
    assert store.images[torch.tensor([3, 20])].shape == (2, 3, 16, 16)
    sizes = [len(PICTURES[3]), len(PICTURES[20])]
    assert sorted(server.asked) == sorted(zip(["train-000.tar", "train-005.tar"], sizes, strict=True))


def test_hashes_are_those_of_the_files(folder, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SETTLED", -(10**10))  # old enough to be remembered
    inside_, outside = read("flat", folder, "train").paths, read("flat", photos, "train").paths
    assert content_hashes(inside_, tmp_path) == content_hashes(outside, None)
    told = []
    assert content_hashes(inside_, tmp_path, watch=lambda count: told.append(count) or (lambda done: None))
    assert told == []  # remembered: no archive is read again


def test_a_run_on_archives_gives_the_encoder_of_one_on_files(folder, photos, tmp_path):
    settings = {
        "data.batch": 4,
        "data.size": 32,
        "data.stored": 32,
        "run.epochs": 1,
        "encoder.name": "timm/test_resnet",
    }
    settings |= {"encoder.weights": "random", "run.device": "cpu", "run.doctor": 0, "data.options": ()}
    held = [
        wingbar.fit(root, out=tmp_path / name, recipe="moco", settings=settings).encoder.state_dict()
        for name, root in (("shards", folder), ("files", photos))
    ]
    assert all(torch.equal(one, held[1][name]) for name, one in held[0].items())


# --- the index -------------------------------------------------------------------------------------------------------


def test_an_archive_is_indexed_once_and_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    path, read_archive, made = archive(tmp_path / "a.tar", samples(0)), shards.read_archive, []
    monkeypatch.setattr(shards, "SETTLED", -(10**10))  # its time of change is now, whatever is said of the other
    monkeypatch.setattr(shards, "read_archive", lambda *words: made.append(1) or read_archive(*words))
    first = shards.open_shard(str(path))
    shards._indexed.cache_clear()
    assert shards.open_shard(str(path)) == first and len(made) == 1
    (memory,) = (tmp_path / "cache" / "listings").iterdir()
    memory.write_bytes(memory.read_bytes().replace(b"0001", b"0009"))  # damaged: its checksum says so
    shards._indexed.cache_clear()
    assert shards.open_shard(str(path)) == first and len(made) == 2
    archive(path, {"new.png": PICTURES[0]})
    assert shards.open_shard(str(path)).names == ["new.png"] and len(made) == 3


# --- broken, absent, hostile -----------------------------------------------------------------------------------------


def spoilt(path: Path, how: str) -> None:
    whole = path.read_bytes()
    content = {
        "cut in a picture": whole[:1500],
        "cut between members": whole[: 2 * 512 + -(-len(PICTURES[0]) // 512) * 512],
        "of noise": os.urandom(4096),
        "empty": b"",
        "compressed": b"\x1f\x8b" + whole,
        "with a bent header": whole[:100] + b"9999" + whole[104:],
    }.get(how)
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize(
    "how",
    ["cut in a picture", "cut between members", "of noise", "empty", "compressed", "with a bent header", "absent"],
)
@pytest.mark.parametrize("remote", [False, True], ids=["disk", "http"])
def test_a_broken_archive_is_named_and_left_out(how, remote, tmp_path, serve):
    for first in range(0, COUNT, EACH):
        archive(tmp_path / f"a-{first // EACH}.tar", samples(first))
    spoilt(tmp_path / "a-2.tar", how)
    pattern = "a-{0..5}.tar"
    listing = read(
        "shards", f"{serve(tmp_path).url}/{pattern}" if remote else tmp_path / pattern, "train", test_fraction=0.0
    )
    assert len(listing.names) == COUNT - EACH and not any(name.startswith("a-2") for name in listing.names)
    assert [(bad.path.name, bad.images) for bad in listing.lost] == [("a-2.tar", EACH)]
    assert listing.notes[0].startswith("1 of 6 archives cannot be read and are left out, first a-2.tar: ")


def test_more_than_a_hundredth_lost_stops_a_run(tmp_path, capsys):
    for number in range(3):
        archive(tmp_path / "data" / f"a-{number}.tar", samples(4 * number))
    (tmp_path / "data" / "a-1.tar").write_bytes(b"no archive")
    settings = {"data.root": str(tmp_path / "data"), "data.stored": 32, "run.out": str(tmp_path / "run")}
    config = changed(recipe_named("moco"), settings | {"data.options": ("test_fraction=0.0",), "data.name": "shards"})
    source = read("shards", config.data.root, "train", test_fraction=0.0)
    store = open_source(config, source, quiet=True)
    assert store.unreadable == 4 and len(store.images) == 8
    with pytest.raises(
        UserError, match=r"4 of 12 files \(33\.3%\) are unreadable, first a-1\.tar: .*most-broken 0\.34"
    ):
        check_unreadable(config, store)
    check_unreadable(changed(config, {"data.most_broken": 0.34}), store)
    assert "a-1.tar" in (tmp_path / "run" / "unreadable.txt").read_text()


def test_no_archive_that_can_be_read_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(
        UserError, match=r"none of the 1 archives of .* the first: a\.tar: it is no tar archive at byte 0"
    ):
        read("shards", tmp_path, "train")


def test_members_that_lead_elsewhere_are_never_followed(tmp_path):
    """Neither read nor made: an archive is not unpacked."""
    (tmp_path / "secret.png").write_bytes(PICTURES[0])
    path = tmp_path / "data" / "a.tar"
    archive(path, {"good.png": PICTURES[1], "../up.png": b"x", "a/../../b.png": b"x", "/etc/c.png": b"x"})
    with tarfile.open(path, "a") as file:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
            about = tarfile.TarInfo(f"odd{number}.png")
            about.type, about.linkname = kind, str(tmp_path / "secret.png")
            file.addfile(about)
    before = sorted(tmp_path.rglob("*"))
    listing = read("shards", path.parent, "train")
    assert listing.names == ("a.tar/good.png",) and sorted(tmp_path.rglob("*")) == before
    assert "7 members of archives are links, lead elsewhere or are too large, first a.tar/../up.png" in listing.notes
    for name in ("../secret.png", "odd0.png", "../up.png", "x/../good.png"):
        assert isinstance(decode_file(path / name, side=8), Unreadable)


def test_an_archive_that_promises_more_than_it_has_takes_no_memory(tmp_path, monkeypatch):
    """Sizes in headers, long names, files with holes: what is read is bounded, and what does not fit is left out."""
    for name, size, kind in (("a", 1 << 40, b"0"), ("b", 1 << 33, b"x"), ("c", 1 << 33, b"L")):
        about = tarfile.TarInfo("a.png")
        about.size, about.type = size, kind
        (tmp_path / f"{name}.tar").write_bytes(about.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
        with pytest.raises(ValueError, match="cut off"):
            shards.open_shard(str(tmp_path / f"{name}.tar"))
    monkeypatch.setattr("wingbar.data.archive.MOST_BYTES", 100)
    large = archive(tmp_path / "d.tar", {"large.png": bytes(101), "small.png": bytes(100)})
    holes = tarfile.TarInfo("holes.png")
    holes.pax_headers = {"GNU.sparse.realsize": str(1 << 50), "GNU.sparse.major": "1"}
    with tarfile.open(large, "a") as file:
        file.addfile(holes)
    found = shards.open_shard(str(large))
    assert found.names == ["small.png"] and found.odd == ["large.png", "holes.png"]


def test_two_hundred_damaged_archives_are_a_sentence_each(tmp_path):
    whole = archive(tmp_path / "a.tar", samples(0)).read_bytes()
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        damaged = bytearray(whole)
        for place_ in torch.randint(len(whole), (30,), generator=generator).tolist():
            damaged[place_] = number
        (tmp_path / "b.tar").write_bytes(damaged[: len(whole) - 300 * (number % 3)])
        try:
            found = shards.open_shard(str(tmp_path / "b.tar"))
            assert all(len(inside(tmp_path / "b.tar" / name).read()) < 10**6 for name in found.names)
        except (ValueError, OSError) as error:
            assert str(error)


# --- servers ---------------------------------------------------------------------------------------------------------


def test_a_server_that_fails_twice_is_asked_again(folder, serve):
    server = serve(folder)
    server.failing = 2
    assert len(shards.open_shard(f"{server.url}/train-001.tar").names) == EACH


@pytest.mark.parametrize(("fault", "sentence"), [({"parts": False}, "does not send parts"), ({"failing": 99}, "503")])
def test_a_server_that_cannot_is_a_sentence(fault, sentence, folder, serve):
    server = serve(folder)
    vars(server).update(fault)
    with pytest.raises(UserError, match=sentence):
        read("shards", f"{server.url}/train-000.tar", "train")


def test_a_server_sends_us_to_others_of_its_kind_only(folder, serve):
    """Python would follow it to an FTP server, too; there somebody waits for whoever comes."""
    first, second = serve(folder), serve(folder)
    first.elsewhere = second.url
    assert len(shards.open_shard(f"{first.url}/train-001.tar").names) == EACH and not first.asked and second.asked
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        waiting.settimeout(0.2)
        for other in (f"ftp://127.0.0.1:{waiting.getsockname()[1]}", f"file://{folder}"):
            first.elsewhere = other
            with pytest.raises(UserError, match=other[:3]):
                read("shards", f"{first.url}/train-000.tar", "train")
        with pytest.raises(TimeoutError):
            waiting.accept()


def test_what_is_no_archive_behind_a_url_is_refused():
    with pytest.raises(UserError, match=r"images\.zip is no tar archive"):
        read("shards", "http://127.0.0.1:9/images.zip", "train")


def test_images_behind_a_url_are_named_so(folder, serve):
    server = serve(folder)
    listing = read("shards", f"{server.url}/train-000.tar", "train", test_fraction=0.0)
    (first, *_) = listing.paths
    assert shards.address(first) == f"{server.url}/train-000.tar/0000.png"


def test_notes_are_told(folder):
    told: list[str] = []
    load(read("shards", folder, "train"), side=8, report=Reporter(say=told.append))
    assert told == []


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "http"])
def test_embeddings_of_archives_are_those_of_files(remote, folder, photos, tmp_path, request):
    capsys, serve = request.getfixturevalue("capsys"), request.getfixturevalue("serve")
    torch.manual_seed(0)
    save_encoder(wingbar.build_encoder("timm/test_resnet").eval(), tmp_path / "a.safetensors", size=32)
    root = f"{serve(folder).url}/train-{{000..005}}.tar" if remote else str(folder)

    def embed(images: str, out: str) -> str:
        main(["embed", str(tmp_path / "a.safetensors"), images, "-o", str(tmp_path / out), "--quiet"])
        return capsys.readouterr().out

    assert "24 new" in embed(root, "a.map") and "24 new" in embed(str(photos), "b.map")
    ours, theirs = (open_embeddings(tmp_path / name) for name in ("a.map", "b.map"))
    assert (ours.vectors[:] == theirs.vectors[:]).all()
    assert [row.content for row in ours.rows] == [row.content for row in theirs.rows]
    assert [row.label for row in ours.rows] == [str(number % 3) for number in range(COUNT)]
    archives = (root.partition("train")[0].rstrip("/") if remote else root, "train-000.tar", "0000.png")
    assert ours.rows[0].path == "/".join(archives)
    assert "Nothing to do" in embed(root, "a.map")
    main(["embed", str(tmp_path / "a.safetensors"), root, "-o", str(tmp_path / "a.map"), "--quiet", "--drop"])
    assert "Nothing to do" in capsys.readouterr().out  # what lies in an archive is not gone


def test_embed_counts_what_is_in_a_broken_archive(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "shards")
    (tmp_path / "shards" / "train-003.tar").write_bytes(b"no archive")
    save_encoder(wingbar.build_encoder("timm/test_resnet").eval(), tmp_path / "a.safetensors", size=32)
    with pytest.raises(SystemExit, match="2"):
        main(["embed", str(tmp_path / "a.safetensors"), str(tmp_path / "shards"), "-o", str(tmp_path / "a.map")])
    assert "4 of 24 files are unreadable, first those of an archive" in " ".join(capsys.readouterr().err.split())


def test_the_doctor_examines_archives(folder, photos):
    ours, theirs = (check(root, quiet=True) for root in (folder, photos))
    assert ours.name == "shards" and {*ours.splits} == {"train", "test"} and {*theirs.splits} == {"train"}
    assert sum(facts.images for facts in ours.splits.values()) == theirs.splits["train"].images == COUNT
