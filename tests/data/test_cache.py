"""Decoded once, read for ever: an entry is found by what is in the files, and never read half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

from wingbar.cli import main
from wingbar.data import cache as cache_module
from wingbar.data import contents, locks
from wingbar.data import entry as entry_module
from wingbar.data.cache import Reporter, cached, kept
from wingbar.data.datasets import load
from wingbar.data.entry import cache_root, check_images, read_parts
from wingbar.data.listing import Listing
from wingbar.data.ondisk import OnDisk, mapped
from wingbar.data.store import Files, decode
from wingbar.data.upkeep import clear, entries
from wingbar.data.walking import find_images
from wingbar.errors import UserError

SIDE = 16


def write_photos(folder: Path, count: int, *, side: int = 24) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        pixels = torch.randint(256, (side, side + number % 7, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:03d}.png", compress_level=1)
    return find_images(folder)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Eight photos and a broken file between them, older than any clock's grain."""
    write_photos(tmp_path / "photos", 8)
    (tmp_path / "photos" / "004-broken.jpg").write_text("no photo")
    settle(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A cache; files count as settled at once, as their times of change cannot be set."""
    monkeypatch.setattr(contents, "SETTLED", 0)
    return tmp_path / "cache"


def settle(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))


class Heard:
    """A report that remembers: titles of bars with their totals, and sentences."""

    def __init__(self) -> None:
        self.bars: dict[str, int] = {}
        self.said: list[str] = []

    @property
    def report(self) -> Reporter:
        def bar(title: str, total: int):
            self.bars[title] = total
            return lambda done: None

        return Reporter(bar, self.said.append)


def opened(folder: Path, root: Path, *, side: int = SIDE):
    """The store, what was heard, and the number of entries afterwards."""
    heard = Heard()
    store = cached(find_images(folder), side=side, root=root, report=heard.report)
    return store, heard, len(entries(root))


@pytest.fixture(scope="module")
def happened(tmp_path_factory) -> dict[str, dict]:
    """What several processes did; see attempts.py."""
    folder = tmp_path_factory.mktemp("attempts")
    write_photos(folder / "photos", 60)
    first = write_photos(folder / "many", 1)[0]
    for number in range(1, 1200):
        os.link(first, first.with_name(f"{number:04d}.png"))
    script = Path(__file__).with_name("attempts.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- what is found again ---------------------------------------------------------------------------------------------


def test_a_second_start_reads_no_file_and_gives_the_same(photos, root, monkeypatch):
    labels = torch.arange(9)
    plain = decode(find_images(photos), side=SIDE, labels=labels)
    first = cached(find_images(photos), side=SIDE, root=root, labels=labels)
    monkeypatch.setattr(contents, "_hash", pytest.fail)
    monkeypatch.setattr(cache_module, "decode_all", pytest.fail)
    second = cached(find_images(photos), side=SIDE, root=root, labels=labels)
    for store in (first, second):
        assert torch.equal(store.images, plain.images) and torch.equal(store.aspect, plain.aspect)
        assert store.labels.tolist() == plain.labels.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
        assert store.broken == plain.broken and store.broken[0].path == photos / "004-broken.jpg"


def test_times_alone_change_nothing(photos, root):
    opened(photos, root)
    os.utime(photos / "000.png", (2e9, 2e9))
    _, heard, count = opened(photos, root)
    assert heard.bars == {"hashing files": 1} and count == 1


def test_a_moved_folder_finds_its_entry(photos, root):
    first, _, _ = opened(photos, root)
    second, heard, count = opened(photos.rename(photos.with_name("elsewhere")), root)
    assert "decoding images" not in heard.bars and count == 1
    assert torch.equal(first.images, second.images) and second.broken[0].path.parent.name == "elsewhere"


def test_a_relative_path_finds_the_same_entry(photos, root, monkeypatch):
    opened(photos, root)
    monkeypatch.chdir(photos.parent)
    mixed = [Path("photos") / path.name if number % 2 else path for number, path in enumerate(find_images(photos))]
    cached(mixed, side=SIDE, root=root)
    (only,) = entries(root)
    assert only.about.origin == str(photos)


def test_another_content_is_another_entry_though_it_looks_the_same(photos, root):
    """Same size and same time of change; the system's own time gives it away."""
    before, _, _ = opened(photos, root)
    path = photos / "003.png"
    data = path.read_bytes()
    Image.new("RGB", (24, 27)).save(path)
    path.write_bytes(path.read_bytes().ljust(len(data), b"\0"))
    os.utime(path, (1e9, 1e9))
    after, heard, count = opened(photos, root)
    assert path.stat().st_size == len(data) and heard.bars["hashing files"] == 1 and count == 2
    assert not torch.equal(before.images, after.images)
    assert torch.equal(after.images, decode(find_images(photos), side=SIDE).images)


def test_a_file_that_is_too_young_is_not_trusted(photos, root, monkeypatch):
    monkeypatch.setattr(contents, "SETTLED", 10**18)
    opened(photos, root)
    assert opened(photos, root)[1].bars == {"hashing files": 9}


@pytest.mark.parametrize("change", ["side", "order", "fewer"])
def test_another_question_is_another_entry(change, photos, root):
    paths = find_images(photos)
    cached(paths, side=SIDE, root=root)
    asked = {"side": paths, "order": paths[::-1], "fewer": paths[1:]}[change]
    side = 8 if change == "side" else SIDE
    assert torch.equal(cached(asked, side=side, root=root).images, decode(asked, side=side).images)
    assert len(entries(root)) == 2


@pytest.mark.parametrize(
    "damage", ["short", "long", "aspect", "about", "gone", "version", "bit", "stretched", "sum", "without sums"]
)
def test_a_damaged_entry_is_made_anew(damage, photos, root):
    opened(photos, root)
    entry = root / entries(root)[0].key
    if damage in ("short", "long"):
        size = (entry / "images.u8").stat().st_size
        os.truncate(entry / "images.u8", size - 1 if damage == "short" else size + 1)
    elif damage == "gone":
        (entry / "images.u8").unlink()
    elif damage == "version":  # another Pillow may read what this one could not
        (entry / "about.json").write_text((entry / "about.json").read_text().replace('"pillow": "', '"pillow": "0.'))
    elif damage in ("bit", "stretched", "sum"):  # of a size that is right
        flip(entry / {"bit": "images.u8", "stretched": "aspect.f32", "sum": "sums.u32"}[damage])
    elif damage == "without sums":  # by an earlier version
        (entry / "sums.u32").unlink()
    else:
        (entry / {"aspect": "aspect.f32", "about": "about.json"}[damage]).write_bytes(b"{}")
    store, heard, count = opened(photos, root)
    assert "decoding images" in heard.bars and count == 1
    assert heard.said[0].startswith(f"the cached images in {entry} are made anew: ") and "\n" not in heard.said[0]
    plain = decode(find_images(photos), side=SIDE)
    assert torch.equal(store.images, plain.images) and torch.equal(store.aspect, plain.aspect)


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_hashes_that_are_damaged_are_not_believed(photos, root):
    """Or a file would seem to have changed that did not."""
    opened(photos, root)
    (memory,) = (root / "hashes").iterdir()
    flip(memory)
    _, heard, count = opened(photos, root)
    assert heard.bars == {"hashing files": 9} and count == 1


def test_what_is_streamed_is_compared_row_by_row(photos, root):
    store = cached(find_images(photos), side=SIDE, root=root, read=OnDisk)
    flip(root / entries(root)[0].key / "images.u8")
    good = [row for row in range(8) if row != 4]
    assert torch.equal(store.images[torch.tensor(good)], decode(find_images(photos), side=SIDE).images[good])
    with pytest.raises(UserError, match=r"^image 4 in .*u8 is not as it was written; .* start again .* anew$"):
        store.images[torch.arange(8)]
    _, heard, count = opened(photos, root)
    assert "decoding images" in heard.bars and count == 1


def test_a_folder_of_broken_files_leaves_nothing(root, tmp_path):
    (tmp_path / "a.jpg").write_text("no photo")
    with pytest.raises(UserError, match="none of the 1 files"):
        cached([tmp_path / "a.jpg"], side=SIDE, root=root)
    assert [path.name for path in root.iterdir()] == ["hashes"]


# --- several processes, and dead ones --------------------------------------------------------------------------------


def test_a_killed_writer_leaves_nothing_that_could_be_read(happened):
    """Twenty of them. An entry is either not there or whole; the next writer sweeps up."""
    done = happened["kill"]
    assert done["killed"] == 20 and done["same"]
    assert done["whole"] == [0] * 19 + [1], "only the last was killed after it had given the entry its name"
    assert max(done["partial"]) == 1 and sum(done["partial"]) >= 10, "most were killed while they were writing"
    assert "partial" not in done["left"]


def test_two_processes_that_start_together_make_one_entry(happened):
    done = happened["together"]
    assert done["codes"] == [0, 0] and done["entries"] == 1 and done["partial"] == 0
    (one, *lines), (other, *more) = done["said"]
    assert one == other and sum("waiting for it" in line for line in lines + more) == 1


def test_without_locks_the_faster_one_stays(photos, root, monkeypatch):
    """While we decode, somebody else finishes; where nothing is locked that may happen."""
    monkeypatch.setattr(locks, "fcntl", None)
    paths, original, nested = find_images(photos), cache_module._publish, []

    def late(partial: Path, entry: Path) -> None:
        if not nested:
            nested.append(True)
            cached(paths, side=SIDE, root=root)
        original(partial, entry)

    monkeypatch.setattr(cache_module, "_publish", late)
    assert torch.equal(cached(paths, side=SIDE, root=root).images, decode(paths, side=SIDE).images)
    assert len(entries(root)) == 1 and not list(root.glob("*.partial"))


def test_memory_does_not_grow_with_the_data(happened):
    """A thousand images of side 256 more are 197 MB more; the allocator's own ups and downs stay far below."""
    assert happened["memory"].keys() == {"decoding", "from_cache", "from_files"}
    for few, many in happened["memory"].values():
        assert many - few < 60_000, "kilobytes"


# --- where there is no cache -----------------------------------------------------------------------------------------


def listing(folder: Path) -> Listing:
    return Listing(folder, tuple(path.name for path in find_images(folder)), torch.arange(9))


@pytest.mark.parametrize("trouble", ["no room", "a file in the way"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_cache_that_cannot_be_used_costs_a_sentence(trouble, streamed, photos, root, monkeypatch):
    if trouble == "no room":
        monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
    else:
        root.write_text("not a folder")
    heard = Heard()
    store = load(listing(photos), side=SIDE, cache=root, streamed=streamed, report=heard.report)
    assert heard.said[0].startswith("the images are not cached: ") and "\n" not in heard.said[0]
    assert isinstance(store.images, Files) == streamed
    plain = decode(find_images(photos), side=SIDE, labels=torch.arange(9))
    assert torch.equal(store.images[torch.arange(8)], plain.images) and torch.equal(store.aspect, plain.aspect)
    assert store.broken == plain.broken and torch.equal(store.labels, plain.labels)


def test_what_a_stream_must_know_is_remembered(photos, root, monkeypatch):
    """Without room for the images, shapes and broken files are still found out only once."""
    monkeypatch.setattr(cache_module, "_check_room", lambda root, needed: _raise(OSError("full")) if needed > 99 else 0)
    first, second = Heard(), Heard()
    load(listing(photos), side=SIDE, cache=root, streamed=True, report=first.report)
    load(listing(photos), side=SIDE, cache=root, streamed=True, report=second.report)
    assert first.bars == {"hashing files": 9, "decoding images": 9} and second.bars == {}
    assert [kept.about.side for kept in entries(root)] == [1]


def _raise(error: Exception) -> None:
    raise error


def test_the_folder_is_chosen_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("WINGBAR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "wingbar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "wingbar"


# --- upkeep ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(photos, root, monkeypatch) -> list[str]:
    """Keys of three entries: used now, ten days ago, and fifty."""
    monkeypatch.setenv("WINGBAR_CACHE", str(root))
    monkeypatch.setenv("COLUMNS", "200")
    for side in (8, 16, 24):
        opened(photos, root, side=side)
    keys = [kept.key for kept in sorted(entries(root), key=lambda kept: kept.about.side)]
    for key, days in zip(keys, (0, 10, 50), strict=True):
        about = root / key / "about.json"
        os.utime(about, (about.stat().st_mtime - days * 86400,) * 2)
    return keys


def test_the_list_tells_what_is_there(three, photos, root, capsys):
    main(["cache", "list"])
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if str(photos) in line]
    assert [line.split("│")[1].strip() for line in lines] == [key[:12] for key in three]
    assert "8" in lines[0] and "14 kB" in lines[2] and str(root) in said
    total = sum(path.stat().st_size for key in three for path in (root / key).iterdir())
    assert f"{total / 1e3:.0f} kB" in said


def test_clearing_by_key_by_age_and_all(three, root, capsys):
    main(["cache", "clear", three[1][:12]])
    assert [kept.key for kept in entries(root)] == [three[0], three[2]] and "Removed 1 " in capsys.readouterr().out
    main(["cache", "clear", "--unused-days", "20"])
    assert [kept.key for kept in entries(root)] == [three[0]]
    (root / f"{three[0]}.1.partial").mkdir()
    (root / f"{three[0]}.lock").touch()  # of somebody who was killed
    (root / "somebody.txt").touch()
    main(["cache", "clear"])
    assert [path.name for path in root.iterdir()] == ["somebody.txt"], "what is not ours stays"


def test_clearing_an_unknown_key_is_refused(three, root, capsys):
    for key in ("zzz", ""):
        with pytest.raises(SystemExit) as stop:
            main(["cache", "clear", key])
        assert stop.value.code == 2 and "cache list" in capsys.readouterr().err
    assert len(entries(root)) == 3


def test_everything_can_be_verified(three, root, capsys):
    """More than a chunk of images, some of them damaged in one entry, and a file of features."""
    features = root / "features" / "abc.safetensors"
    kept(root, ["an encoder"], lambda: torch.arange(12.0).reshape(3, 4))
    next(features.parent.iterdir()).rename(features)
    main(["cache", "verify"])
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == [*(f"{key}: whole" for key in sorted(three)), "features/abc.safetensors: whole"]
    flip(root / three[1] / "images.u8")
    flip(features)
    with pytest.raises(SystemExit) as stop:
        main(["cache", "verify"])
    said = capsys.readouterr()
    assert stop.value.code == 2 and f"{three[1]}: DAMAGED, 1 of its 8 images" in said.out
    assert said.out.count("whole") == 2 and "features/abc.safetensors: DAMAGED" in said.out
    assert "2 of 4 " in said.err and "cache clear" in said.err and said.err.count("\n") == 1
    main(["cache", "verify", three[0][:12], three[2]])
    assert capsys.readouterr().out.count(": whole") == 2


@pytest.mark.parametrize("step", [1, 3])
def test_every_image_is_looked_at_whatever_is_read_at_once(step, photos, root, monkeypatch):
    monkeypatch.setattr(entry_module, "CHUNK", step * 3 * SIDE * SIDE)
    opened(photos, root)
    path = root / entries(root)[0].key
    content, sums = bytearray((path / "images.u8").read_bytes()), read_parts(path).sums
    check_images(path / "images.u8", sums, row=3 * SIDE * SIDE)
    for row in (0, 5, 7):
        content[row * 3 * SIDE * SIDE] ^= 255
    (path / "images.u8").write_bytes(content)
    with pytest.raises(ValueError, match=r"^3 of its 8 images"):
        check_images(path / "images.u8", sums, row=3 * SIDE * SIDE)


@pytest.mark.parametrize("read", [mapped, OnDisk], ids=["mapped", "on disk"])
def test_what_is_in_use_is_not_cleared(read, photos, root):
    store = cached(find_images(photos), side=SIDE, root=root, read=read)
    before = store.images[torch.arange(8)].clone()
    done = clear(root)
    assert done.removed == 0 and done.in_use == [entries(root)[0].key]
    assert torch.equal(store.images[torch.arange(8)], before)
    del store
    assert clear(root).removed == 1 and entries(root) == []


def test_what_is_being_written_is_not_cleared(photos, root, monkeypatch):
    original, done = cache_module._write, []

    def write(partial: Path, *arguments: object, **options: object) -> None:
        original(partial, *arguments, **options)
        done.append(clear(root))

    monkeypatch.setattr(cache_module, "_write", write)
    opened(photos, root)
    assert done[0].removed == 0 and len(done[0].in_use) == 1 and len(entries(root)) == 1


def test_ranks_that_begin_together_read_every_file_once(tmp_path, monkeypatch):
    """Whoever comes second waits, and finds what the first one remembered."""
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(bytes([number]) * 9)
        os.utime(tmp_path / f"{number}.png", (1e9, 1e9))
    monkeypatch.setattr(contents, "SETTLED", -(10**10))
    paths, read, hashed = sorted(tmp_path.glob("*.png")), [], contents._hash
    monkeypatch.setattr(contents, "_hash", lambda path: read.append(path) or time.sleep(0.01) or hashed(path))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: contents.content_hashes(paths, tmp_path / "memory"), range(3)))
    assert sorted(read) == paths and found[0] == found[1] == found[2] == contents.content_hashes(paths, None)
