"""What the explorer answers equals what is computed another way; whom it does not answer is told why."""

from __future__ import annotations

import base64
import csv
import http.client
import io
import json
import os
import re
import shutil
import socket
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from explored_run import CLASSES, IMAGES, SIZE, make_run, opened, serving
from PIL import Image

import wingbar
from wingbar.cli import main
from wingbar.config.settings import changed
from wingbar.data import views
from wingbar.data.batches import fold
from wingbar.errors import UserError
from wingbar.evaluate.candidates import find_candidate
from wingbar.evaluate.wanted import find_wanted
from wingbar.metrics.attention import attention_maps
from wingbar.metrics.pairs import make_pairs
from wingbar.models.encoder import evaluation_mode
from wingbar.show.figures.cells import laid_over
from wingbar.show.visit import spread_over_classes
from wingbar.train.stages import build_views
from wingbar.types import Batch, Seen
from wingbar.use.explore import server as serving_module
from wingbar.use.explore.explorer import MOST_BYTES, REMEMBERED
from wingbar.use.explore.options import Explore, check_explore
from wingbar.use.explore.server import ExploreServer
from wingbar.use.explore.twins import why_no_twins


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("explore"))


@pytest.fixture(scope="module")
def explorer(home):
    return opened(home / "run")


@pytest.fixture(scope="module")
def server(explorer):
    with serving(explorer) as running:
        yield running


@pytest.fixture
def ask(server):
    """Status, headers and body of an answer."""

    def call(path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        line = http.client.HTTPConnection(*server.socket.getsockname(), timeout=30)
        line.putrequest("GET" if body is None else "POST", path, skip_host="Host" in (headers or {}))
        given = {"Content-Length": str(len(body))} if body is not None else {}
        for name, value in (given | (headers or {})).items():
            line.putheader(name, value)
        line.endheaders(body)
        reply = line.getresponse()
        found = reply.status, dict(reply.headers), reply.read()
        line.close()
        return found

    return call


@pytest.fixture
def told(ask):
    """The JSON of an answer that is one."""

    def call(*words: object, **how: object):
        status, _, body = ask(*words, **how)
        assert status == 200, body
        return json.loads(body)

    return call


def paths(explorer) -> list[Path]:
    return [Path(row.path) for row in explorer.album.rows]


def cosines(vectors: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(vectors.double())
    return unit @ unit.T


def pixels(uri: str, side: int) -> np.ndarray:
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    return np.asarray(picture.resize((side, side), Image.Resampling.BOX)).astype(float)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_neighbours_are_those_of_both_encoders(explorer, home, told):
    """Before: of the weights the run began with. After: of its own. Both by embedding the files again."""
    found = told("/row/3")
    assert [one["title"] for one in found["encoders"]] == ["before training", "after training"]
    for one, what in zip(found["encoders"], (home / "first.safetensors", home / "run"), strict=True):
        similar = cosines(wingbar.load(what, device="cpu").embed(paths(explorer)))[3].tolist()
        wanted = sorted((row for row in range(IMAGES) if row != 3), key=lambda row: -similar[row])[:5]
        assert [row for row, _ in one["near"]] == wanted
        assert [cosine for _, cosine in one["near"]] == pytest.approx([similar[row] for row in wanted], abs=1e-5)


def test_a_sent_image_finds_itself_and_a_filter_leaves_only_its_classes(explorer, told):
    content = paths(explorer)[7].read_bytes()
    near = told("/image", content)["encoders"][1]["near"]
    assert near[0] == [7, pytest.approx(1, abs=1e-6)]
    label = int(explorer.album.labels[7])
    others = [one for one in range(len(CLASSES)) if one != label]
    for encoder in told(f"/image?classes={others[0]},{others[1]}", content)["encoders"]:
        assert len(encoder["near"]) == 5 and label not in explorer.album.labels[[row for row, _ in encoder["near"]]]
    assert told("/image?classes=99", content)["encoders"][0]["near"] == []


def test_attention_is_that_of_the_protocol(explorer, told):
    """The protocol maps all images of a store by their nearest neighbours, here one is asked for."""
    last = explorer.encoders[-1]
    maps = attention_maps(
        last.loaded.embedder.encoder, explorer.album.store, last.loaded.prepare, views.moco(size=SIZE, count=1)
    )
    cam = torch.cat([one.cams["likeness"] for one in maps])[4]
    answer = told("/row/4")
    assert cam.max() > 1.2 * cam.min()
    seen = torch.from_numpy(pixels(answer["seen"], SIZE)).permute(2, 0, 1).to(torch.uint8)
    wanted = 255 * laid_over(seen, cam / cam.max())[..., :3]
    assert np.abs(pixels(answer["encoders"][1]["looks"], SIZE) - wanted).mean() < 4  # JPEG, and it is drawn larger


def test_twins_are_those_of_the_method_on_a_whole_batch(explorer):
    """Feature, importance and rebuilt image, with the crowd in the same batch, as training has it."""
    twins, album = explorer.twins, explorer.album
    rows = spread_over_classes(torch.from_numpy(album.labels), 7)
    batches = [_seen(twins.config, album.store, one) for one in (torch.tensor([2]), rows)]
    images, second = (torch.cat(parts) for parts in zip(*batches, strict=True))
    batch = Batch(images, (second, second), torch.tensor([0, *rows.tolist()]), seed=fold(0, 1))
    with torch.no_grad(), evaluation_mode(twins.method):
        feature = twins.method.encoder(images).vector
        importances = twins.method.importances(feature, batch)
    judged = twins.judge(album.pictures([2])[0])
    for found, wanted in zip((judged.feature, *judged.importances), (feature, *importances), strict=True):
        torch.testing.assert_close(found, wanted[:1], rtol=1e-4, atol=1e-4)
    rebuilt = make_pairs(twins.method, batch, ["one"]).rebuilt[0].permute(1, 2, 0).numpy()
    assert np.abs(twins.make(judged, scale=1.0, on={0, 1}).rebuilt.astype(int) - rebuilt).max() <= 1


def _seen(config, store, rows):
    """Plain images, and the view that MoCo is probed by."""
    generator = torch.Generator().manual_seed(fold(0, 0))
    made = build_views(config)(store.images[rows], store.aspect[rows], rows, generator)
    return views.plain(store.images[rows], size=SIZE), Batch(made[0], Seen.of(made).views, rows, seed=0).second


def test_noise_and_criteria_change_the_twin_as_they_should(told):
    key = told("/row/2")["key"]

    def moved(noise: float, criteria: str) -> float:
        return told(f"/twin/{key}?noise={noise}&criteria={criteria}")["moved"]

    assert moved(0, "0,1") == moved(16, "") == 0
    assert 0 < moved(1, "0,1") < moved(4, "0,1") < moved(16, "0,1")
    assert 0 < moved(16, "0") != moved(16, "1") > 0
    made = told(f"/twin/{key}?noise=0&criteria=0,1")
    assert made["twin"] == made["rebuilt"]


def test_an_image_is_remembered_for_a_while(explorer, told, ask):
    key = told("/row/0")["key"]
    for row in range(1, REMEMBERED + 1):
        explorer._remember(explorer._taken(row % IMAGES)._replace(row=-row))
    status, _, body = ask(f"/twin/{key}")
    assert status == 400 and "ask for it again" in json.loads(body)["error"]


def test_the_page_knows_all_images_but_not_where_they_lie(explorer, home, told):
    about = told("/about")
    assert [about["classes"][label] for label in about["labels"]] == [row.label for row in explorer.album.rows]
    assert len(about["names"]) == IMAGES and str(home) not in json.dumps(about)
    assert [one["title"] for one in about["maps"]] == ["after training", "before training"]
    vectors = torch.nn.functional.normalize(torch.from_numpy(explorer.encoders[-1].vectors).double())
    centred = vectors - vectors.mean(dim=0)
    spread = torch.linalg.svdvals(centred)[:2]
    assert np.linalg.norm(np.array(about["maps"][0]["places"]), axis=0) == pytest.approx(spread.numpy(), abs=1e-3)
    assert about["criteria"] == ["Grad-CAM", "low variance"]
    assert about["title"] == "run" and about["marked"] == [0, 1, 2]


def test_pictures_come_from_the_store_in_their_proportions(explorer, ask):
    (wide,) = [row for row, path in enumerate(paths(explorer)) if path.name == "05.png"]
    gone = paths(explorer)[wide].rename(paths(explorer)[wide].with_suffix(".away"))
    try:  # nothing is read from the file again
        status, headers, body = ask(f"/picture/{wide}?v=1")
    finally:
        gone.rename(gone.with_suffix(".png"))
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    picture = Image.open(io.BytesIO(body))
    assert picture.size == (224, 140)
    again = np.asarray(Image.open(paths(explorer)[wide]).resize((28, 17))).astype(float)
    assert np.abs(np.asarray(picture.resize((28, 17))).astype(float) - again).mean() < 6


def test_chosen_images_leave_as_a_table_and_as_a_sheet(explorer, ask):
    rows = [IMAGES - 1, 0, 1]
    lines = list(csv.reader(io.StringIO(ask("/table", json.dumps(rows).encode())[2].decode())))
    wanted = [explorer.album.rows[row] for row in rows]
    escaped = ["'" + one.label if one.label.startswith("=") else one.label for one in wanted]
    assert lines == [["path", "label"], *([one.path, label] for one, label in zip(wanted, escaped, strict=True))]
    status, headers, body = ask("/sheet", json.dumps(rows).encode())
    assert (status, headers["Content-Type"]) == (200, "image/png")
    one = Image.open(io.BytesIO(ask("/sheet", b"[0]")[2]))
    assert Image.open(io.BytesIO(body)).width > 2 * one.width


def test_of_a_stock_trunk_only_what_it_has_is_shown(home):
    found = opened("timm/test_resnet", home / "photos", weights="random")
    about = found.about
    assert about["criteria"] == [] and len(about["maps"]) == 1
    assert any("no before and after" in note for note in about["notes"])
    assert any("no decoder" in note for note in about["notes"])
    assert [one["title"] for one in found.ask(0)["encoders"]] == ["by test_resnet"]
    with pytest.raises(UserError, match="no decoder"):
        found.twin("", scale=1.0, on=())


def test_two_images_without_classes_are_enough(home, tmp_path):
    for name in ("a.png", "b.png"):
        shutil.copy(next((home / "photos").rglob(f"0{len(name) % 5}.png")), tmp_path / name)
    found = opened("timm/test_resnet", tmp_path, weights="random")
    assert found.about["maps"] == found.about["classes"] == found.about["marked"] == []
    assert found.about["names"] == ["a.png", "b.png"] and found.about["labels"] == [-1, -1]
    assert found.ask(0)["encoders"][0]["near"] == [(1, pytest.approx(1))]
    (tmp_path / "b.png").unlink()
    with pytest.raises(UserError, match="two or more"):
        opened("timm/test_resnet", tmp_path, weights="random")


def test_a_run_says_why_it_has_no_twins(home):
    run = find_candidate(find_wanted(str(home / "run")))
    for wrappers, why in {(): "without pairs", ("featurepairs",): "wingbar show"}.items():
        assert why in why_no_twins(run._replace(config=changed(run.config, {"wrappers": wrappers})))


def test_the_command_says_where_it_is_and_ctrl_c_ends_it(home, capsys, monkeypatch):
    def interrupted(server: ExploreServer, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExploreServer, "serve_forever", interrupted)
    main(["explore", str(home / "run"), "--port", "0", "--device", "cpu", "--quiet"])
    assert re.fullmatch(r"Open http://127\.0\.0\.1:\d+/ in a browser; Ctrl-C ends it\.\n", capsys.readouterr().out)


def test_what_a_run_began_with_may_be_gone(home):
    first = home / "first.safetensors"
    away = first.rename(home / "away")
    try:
        found = opened(home / "run")
    finally:
        away.rename(first)
    assert [one.title for one in found.encoders] == ["after training"] and "began with" in found.notes[0]


def test_vectors_are_computed_once(home, explorer, monkeypatch):
    monkeypatch.setattr("wingbar.use.explore.explored._embedded", lambda *_: pytest.fail("embedded again"))
    again = opened(home / "run")
    for one, before in zip(again.encoders, explorer.encoders, strict=True):
        assert np.array_equal(one.vectors, before.vectors) and np.array_equal(one.places, before.places)


# --- refusals --------------------------------------------------------------------------------------------------------


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A file whose head promises so many pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(content)
    parts = (
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (head, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


SENT = {
    "nothing": (b"", "empty"),
    "text": (b"only words", "no image in a format we read"),
    "a page": (b"<svg onload=alert(1)>", "no image in a format we read"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image in a format we read"),
    "a cut-off image": (png(40, 40, b"\0" * 99), "can be read"),
    "a bomb": (png(60_000, 60_000), "bomb"),
    "many pixels": (png(8_000, 8_000), "too many"),
    "a form": (b'--x\r\nContent-Disposition: form-data; name="f"; filename="../../etc/passwd"\r\n\r\n', "no image"),
}


@pytest.mark.parametrize("what", SENT)
def test_what_is_no_sane_image_is_refused_with_a_sentence(what, ask):
    body, why = SENT[what]
    status, _, answer = ask("/image", body)
    assert status == 400 and why in json.loads(answer)["error"]


def test_too_much_is_refused_before_it_is_read(ask):
    status, _, answer = ask("/image", b"", {"Content-Length": str(MOST_BYTES + 1)})
    assert status == 413 and "25 MB" in json.loads(answer)["error"]
    assert ask("/image", b"", {"Content-Length": "-1"})[0] == 411
    assert ask("/image", b"", {"Content-Length": "0", "Transfer-Encoding": "chunked"})[0] in (400, 411)


OUTSIDE = [
    *("/picture/../../../etc/passwd", "/picture/%2e%2e/%2e%2e/etc/passwd", "/picture//etc/passwd", "/picture/-1"),
    *("/picture/1e3", "/picture/%D9%A3", "/assets/../server.py", "/assets/%2e%2e%2fserver.py", "/assets//etc/passwd"),
    *("/etc/passwd", "/../etc/passwd", "/assets/", "/image", "/photos/00.png"),
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_but_rows_and_our_own_files_is_served(path, ask):
    status, _, body = ask(path)
    assert status == 404 and set(json.loads(body)) == {"error"}


@pytest.mark.parametrize("path", ["/picture/99999", "/row/99999", "/row/0?classes=x", "/twin/none?noise=x"])
def test_what_does_not_exist_is_told(path, ask):
    status, _, body = ask(path)
    assert status == 400 and json.loads(body)["error"]


@pytest.mark.parametrize("rows", [b"[99999]", b'["/etc/passwd"]', b"{}", b"no json", b"[true]", b"[1.5]"])
def test_only_rows_can_be_chosen(rows, ask):
    assert ask("/table", rows)[0] == ask("/sheet", rows)[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "elsewhere.example"},
        {"Host": "localhost.elsewhere.example:80"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_names_and_pages_of_other_sites_are_not_answered(headers, ask):
    for path, body in (("/about", None), ("/picture/0", None), ("/image", b"x"), ("/table", b"[0]")):
        assert ask(path, body, headers)[0] == 403


def test_our_own_page_and_a_tunnel_are_answered(server, ask):
    port = server.socket.getsockname()[1]
    own = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    tunnel = {"Host": "localhost:9000", "Origin": "http://localhost:9000"}
    assert ask("/table", b"[0]", own)[0] == ask("/table", b"[0]", tunnel)[0] == 200
    assert ask("/", None, {"Sec-Fetch-Site": "cross-site"})[0] == 200  # a link to us


def test_the_page_may_load_nothing_from_elsewhere(ask):
    status, headers, body = ask("/")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert b"http" not in body.lower()


def test_whoever_does_not_know_the_password_is_not_answered(explorer, monkeypatch):
    monkeypatch.setattr(serving_module, "PAUSE", 0.0)
    with serving(explorer, password="correct horse") as server:

        def status(words: str | None) -> int:
            line = http.client.HTTPConnection(*server.socket.getsockname(), timeout=30)
            coded = base64.b64encode((words or "").encode()).decode()
            line.request("GET", "/about", headers={"Authorization": f"Basic {coded}"} if words is not None else {})
            reply = line.getresponse()
            line.close()
            return reply.status

        assert [status(words) for words in (None, "", "me:", "me:correct", "correct horse:")] == [401] * 5
        assert status("me:correct horse") == 200


def test_another_host_needs_a_password(home, monkeypatch):
    def check(host: str) -> None:
        check_explore(Explore(str(home / "run"), host=host))

    for word in ("", "short"):
        monkeypatch.setenv("WINGBAR_PASSWORD", word)
        for host in ("0.0.0.0", "::", "192.168.1.7", "elsewhere.example"):
            with pytest.raises(UserError, match="WINGBAR_PASSWORD"):
                check(host)
        for host in ("127.0.0.1", "localhost", "::1"):
            check(host)
    monkeypatch.setenv("WINGBAR_PASSWORD", "long enough")
    check("0.0.0.0")


def test_nothing_that_is_sent_is_written(explorer, home, ask):
    def everything() -> set[tuple[Path, int]]:
        places = (home, Path(os.environ["WINGBAR_CACHE"]), Path.cwd())
        return {(path, path.stat().st_mtime_ns) for place in places for path in place.rglob("*") if path.is_file()}

    before = everything()
    ask("/image", paths(explorer)[0].read_bytes())
    ask("/image", b"no image")
    ask("/sheet", b"[0, 1]")
    assert everything() == before


def test_the_end_waits_for_answers_but_not_for_idle_connections(explorer):
    before = threading.active_count()
    with serving(explorer) as server, socket.create_connection(server.socket.getsockname()) as idle:
        line = http.client.HTTPConnection(*server.socket.getsockname(), timeout=30)
        line.request("GET", "/row/1")  # and the server is told to end
        while len(server.visits) < 2:
            pass
        server.shutdown()
        server.server_close()
        assert threading.active_count() <= before + 1  # its own
        assert line.getresponse().status == 200 and idle.recv(1) == b""
        line.close()


def test_a_port_that_is_taken_is_told(server):
    with pytest.raises(UserError, match="--port"):
        serving_module.bound("127.0.0.1", server.socket.getsockname()[1])
