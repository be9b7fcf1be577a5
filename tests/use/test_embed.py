"""An embeddings file holds what the encoder says of every image, grows by what is new, and survives a kill."""

from __future__ import annotations

import json
import shutil
import signal
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dying import killed
from PIL import Image
from sklearn.decomposition import PCA

import wingbar
from forked import FORKS
from wingbar.cli import main
from wingbar.config.sections import DataSettings
from wingbar.data import guess, views
from wingbar.data.locks import alone
from wingbar.data.store import decode
from wingbar.errors import UserError
from wingbar.models.embedder import Embedder, save_embedder
from wingbar.models.weights import load_encoder, save_encoder
from wingbar.use import embedding
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow, Maker
from wingbar.use.formats import ParquetVectors, open_embeddings, write_embeddings
from wingbar.use.rows import PartShelf

PARQUET = pytest.param(
    ".parquet", marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason="Parquet needs pyarrow")
)
ENDINGS = [".npz", ".map", PARQUET]
SIZE = 32


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """Two small encoders as files."""
    folder = tmp_path_factory.mktemp("weights")
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        encoder = wingbar.build_encoder("timm/test_resnet").eval()
        save_encoder(encoder, folder / f"{name}.safetensors", size=SIZE)
    return {name: folder / f"{name}.safetensors" for name in "ab"}


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(24, 20 + seed % 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Ten images of two classes, two of them the same."""
    for number in range(10):
        draw(tmp_path / "photos" / f"{number % 2}-birds" / f"{number:02d}.png", number)
    shutil.copy(tmp_path / "photos/0-birds/02.png", tmp_path / "photos/1-birds/03.png")
    return tmp_path / "photos"


@pytest.fixture
def embed(weights, photos, tmp_path, capsys):
    """The command, and what it says."""

    def call(*words: str, out: str = "photos.npz", what: str = "a") -> str:
        main(["embed", str(weights[what]), str(photos), "-o", str(tmp_path / out), "--quiet", *words])
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(embed, capsys):
    def call(*words: str, **how: str) -> str:
        with pytest.raises(SystemExit) as stop:
            embed(*words, **how)
        said = capsys.readouterr()
        assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1
        return said.err

    return call


def content(path: Path) -> dict[str, bytes]:
    """Every byte of a file, or of the files of a folder."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


def features(path: Path, images: list[Path]) -> np.ndarray:
    """By hand: decoded to 256 px, the centre of 32, through the encoder."""
    store = decode(images, side=256)
    with torch.no_grad():
        seen = views.centre(store.images[torch.arange(len(images))], store.aspect, size=SIZE)
        return load_encoder(path)(seen).vector.numpy()


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_image_has_its_row(ending, embed, photos, weights, tmp_path):
    assert "10 images, 96 numbers each (fp16); 10 new" in embed(out=f"photos{ending}")
    file, paths = open_embeddings(tmp_path / f"photos{ending}"), sorted(photos.rglob("*.png"))
    assert [row.path for row in file.rows] == [str(path) for path in paths]
    assert [row.label for row in file.rows] == [path.parent.name for path in paths]
    hashes = [blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in paths]
    assert [row.content for row in file.rows] == hashes
    wanted = features(weights["a"], paths)
    assert file.vectors[:].dtype == np.float16 and np.allclose(file.vectors[:], wanted, rtol=2e-3, atol=1e-4)
    assert np.array_equal(file.vectors[np.array([7, 2])], file.vectors[:][[7, 2]])
    maker = file.about.maker
    assert (maker.what, maker.size, maker.view) == (str(weights["a"]), SIZE, "centre")


def test_others_read_it_without_us(embed, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    for ending in (".npz", ".map", ".parquet"):
        embed("--dtype", "fp32", "--map", "pca", "--neighbours", "3", out=f"photos{ending}")
    table = pq.read_table(tmp_path / "photos.parquet").to_pydict()
    with np.load(tmp_path / "photos.npz") as arrays:
        vectors, x, y = (arrays[name] for name in ("vector", "projection_x", "projection_y"))
        assert np.array_equal(np.stack(table["vector"]), vectors) and arrays["path"].tolist() == table["path"]
        assert [one["ids"] for one in table["neighbors"]] == arrays["neighbor_ids"].tolist()
    (mapped,) = (tmp_path / "photos.map").glob("vector.*.npy")
    assert np.array_equal(np.load(mapped, mmap_mode="r"), vectors)
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    places = PCA(2).fit_transform(unit)
    assert np.allclose(np.abs(places), np.abs(np.stack([x, y], axis=1)), atol=1e-5)
    cosine = unit @ unit.T - 2 * np.eye(10)
    for row, found in enumerate(table["neighbors"]):
        assert np.allclose(found["distances"], 1 - np.sort(cosine[row])[::-1][:3], atol=1e-6)
        assert np.allclose(cosine[row, found["ids"]], 1 - np.array(found["distances"]), atol=1e-6)
    said = json.loads(pq.read_schema(tmp_path / "photos.parquet").metadata[b"wingbar"])
    assert said["maker"]["size"] == SIZE and len(said["fingerprint"]) == 64


def test_data_sets_without_files_and_tables_are_read(weights, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guess, "DRAWN", {"train": 3, "test": 2})
    main(["embed", str(weights["a"]), "lookalike", "-o", str(tmp_path / "birds.npz"), "--quiet"])
    birds = open_embeddings(tmp_path / "birds.npz").rows
    assert len(birds) == 5 and birds[0].path == "lookalike/train/00000" and all(row.label for row in birds)
    table = tmp_path / "table.csv"
    table.write_text("path,label\nphotos/0-birds/00.png,wren\nphotos/1-birds/01.png,tit\n")
    main(["embed", str(weights["a"]), str(table), "-o", str(tmp_path / "table.npz"), "--quiet"])
    assert [row.label for row in open_embeddings(tmp_path / "table.npz").rows] == ["wren", "tit"]
    table.write_text("path,label\nphotos/0-birds/00.png,wren\nphotos/1-birds/01.png,coal tit\n")
    main(["embed", str(weights["a"]), str(table), "-o", str(tmp_path / "table.npz"), "--quiet"])
    assert [row.label for row in open_embeddings(tmp_path / "table.npz").rows] == ["wren", "coal tit"]
    assert "0 new, 0 changed, 2 as before" in capsys.readouterr().out


# --- again -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_second_time_there_is_nothing_to_do(ending, embed, tmp_path, monkeypatch):
    out = tmp_path / f"photos{ending}"
    embed("--neighbours", "2", out=out.name)
    before = content(out)
    monkeypatch.setattr(embedding, "_embed", None)  # nothing is computed
    assert embed(out=out.name).startswith("Nothing to do") and content(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"photos", out.name}
    out.unlink() if out.is_file() else shutil.rmtree(out)
    monkeypatch.undo()
    embed("--neighbours", "2", out=out.name)
    assert content(out) == before  # the same rows are the same bytes


@pytest.mark.parametrize("ending", ENDINGS)
def test_one_changed_image_changes_one_row(ending, embed, photos, tmp_path):
    out = f"photos{ending}"
    embed(out=out)
    before = open_embeddings(tmp_path / out)
    rows, vectors = list(before.rows), np.array(before.vectors[:])
    draw(photos / "1-birds" / "05.png", 99)
    assert "0 new, 1 changed, 9 as before" in embed(out=out)
    after = open_embeddings(tmp_path / out)
    different = [row for row in range(10) if not np.array_equal(vectors[row], after.vectors[:][row])]
    assert different == [row for row in range(10) if rows[row] != after.rows[row]]
    assert [Path(after.rows[row].path).name for row in different] == ["05.png"]


def test_new_images_come_last_and_gone_ones_go_when_asked(embed, photos, tmp_path):
    embed()
    names = [Path(row.path).name for row in open_embeddings(tmp_path / "photos.npz").rows]
    draw(photos / "0-birds" / "00a.png", 50)
    shutil.move(photos / "0-birds" / "02.png", tmp_path / "elsewhere.png")
    said = embed()
    assert "1 new, 0 changed, 10 as before" in said and "1 file is no longer there" in said
    assert [Path(row.path).name for row in open_embeddings(tmp_path / "photos.npz").rows] == [*names, "00a.png"]
    assert "1 dropped" in embed("--drop") and "Nothing to do" in embed("--drop")
    names.remove("02.png")
    assert [Path(row.path).name for row in open_embeddings(tmp_path / "photos.npz").rows] == [*names, "00a.png"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_and_started_again_is_the_same_as_undisturbed(ending, embed, weights, photos, tmp_path):
    words = ["--batch", "2", "--neighbours", "2"]
    embed(*words, out=f"undisturbed{ending}")
    out, moment = tmp_path / f"killed{ending}", SystemRandom().randrange(16 if ending == ".map" else 12)
    arguments = ["embed", str(weights["a"]), str(photos), "-o", str(out), "--quiet", *words]
    process = FORKS.Process(target=killed, args=(arguments, moment))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL, f"killed at {moment}"
    embed(*words, out=out.name)
    assert [*content(out).values()] == [*content(tmp_path / f"undisturbed{ending}").values()], f"killed at {moment}"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending, damage", [("json", b'{"hashes": ["b"]}'), ("json", b"\xff"), ("npy", b"\x93NUMPY("), ("npy", b"")]
)
def test_a_damaged_part_is_computed_again(ending, damage, tmp_path):
    shelf = PartShelf(tmp_path, "whose", dim=3, kind=np.dtype("f2"))
    for number, name in enumerate("abc"):
        shelf.add([name], np.full((1, 3), number, dtype=np.float32), {f"{name} is broken": "no image"})
    (tmp_path / f"000001.{ending}").write_bytes(damage)
    again = PartShelf(tmp_path, "whose", dim=3, kind=np.dtype("f2"))
    assert again.places == {"a": (0, 0)} and again.broken == {"a is broken": "no image"}
    again.add(["b"], np.full((1, 3), 1, dtype=np.float32), {})
    whole = PartShelf(tmp_path, "whose", dim=3, kind=np.dtype("f2"))
    assert {name: float(whole.arrays[part][row][0]) for name, (part, row) in whole.places.items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
    }


def test_a_group_of_rows_that_is_not_as_long_as_it_says_is_damaged(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    files = []
    for rows in (3, 2):
        about, names = IndexAbout(Maker("resnet18"), 4, "fp16"), [IndexRow(f"/{n}", "", "0" * 64) for n in range(rows)]
        write_embeddings(tmp_path / f"{rows}.parquet", Embeddings(about, names, np.ones((rows, 4), np.float16)))
        files.append(pq.ParquetFile(tmp_path / f"{rows}.parquet"))
    mixed = SimpleNamespace(metadata=files[0].metadata, num_row_groups=1, read_row_group=files[1].read_row_group)
    with pytest.raises(UserError, match="row group 0 of the embeddings file is damaged"):
        ParquetVectors(mixed, 4)[0:3]


def test_two_embedders_are_not_mixed(embed, refused, photos, tmp_path):
    embed()
    before = content(tmp_path / "photos.npz")
    assert "another embedder" in refused(what="b")
    assert "32 and 64 px" in refused("--data.size", "64")
    assert "holds fp16" in refused("--dtype", "fp32")
    (tmp_path / "strange.npz").write_text("mine")
    assert "no embeddings file" in refused(out="strange.npz")
    (tmp_path / "full.map").mkdir()
    (tmp_path / "full.map" / "notes.txt").write_text("mine")
    assert "no embeddings file" in refused(out="full.map")
    with alone(tmp_path / ".photos.npz.lock", busy=lambda holder: None):
        assert "is being written" in refused()
    assert content(tmp_path / "photos.npz") == before


def test_unreadable_files_are_named_and_few(embed, refused, photos, tmp_path, monkeypatch):
    (photos / "0-birds" / "broken.png").write_text("no image")
    assert "1 of 11 files are unreadable" in refused()
    monkeypatch.setattr(embedding, "DataSettings", lambda: DataSettings(most_broken=0.2))
    said = embed()
    assert "10 new" in said and "1 file is unreadable and left out" in said and "broken.png" in said
    assert "Nothing to do" in embed() and len(open_embeddings(tmp_path / "photos.npz").rows) == 10


# --- from Python -----------------------------------------------------------------------------------------------------


def test_files_pictures_and_tensors_are_the_same_images(weights, photos, embed, tmp_path):
    loaded, paths = wingbar.load(weights["a"], device="cpu"), sorted(photos.rglob("*.png"))
    vectors = loaded.embed(photos)
    assert torch.equal(vectors, loaded.embed(paths)) and np.allclose(vectors, features(weights["a"], paths), atol=1e-5)
    with Image.open(paths[4]) as picture:
        assert torch.allclose(loaded.embed(picture)[0], vectors[4], atol=1e-5)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    assert torch.allclose(loaded.embed([pixels, pixels[None] / 255, paths[4]]), vectors[[4, 4, 4]], atol=1e-5)
    embed("--dtype", "fp32")
    (found,) = loaded.search(tmp_path / "photos.npz", paths[4], k=2)
    assert (found[0].row, found[0].path, found[0].label) == (4, str(paths[4]), "0-birds") and found[0].cosine > 0.99999
    with pytest.raises(UserError, match="numbers from 0 to 1"):
        loaded.embed(pixels - 300.0)
    with pytest.raises(UserError, match="no readable image"):
        loaded.embed(weights["a"])
    with pytest.raises(UserError, match=r"nobody\.npz does not exist; write it with: wingbar embed"):
        loaded.search("nobody.npz", paths[4])
    with pytest.raises(UserError, match="holds vectors of"):
        wingbar.load(weights["b"], device="cpu").search(tmp_path / "photos.npz", paths[4])


def test_an_embedders_folder_is_found_and_found_again(weights, photos, tmp_path, capsys):
    save_embedder(Embedder(load_encoder(weights["a"]), size=SIZE), tmp_path / "made")
    made = tmp_path / "made" / "embedder"
    main(["embed", str(made), str(photos), "-o", str(tmp_path / "photos.npz"), "--quiet"])
    assert open_embeddings(tmp_path / "photos.npz").about.maker.size == SIZE
    query = [str(photos / "0-birds" / "04.png"), "--k", "1", "--json", "--quiet"]
    capsys.readouterr()
    main(["search", str(tmp_path / "photos.npz"), *query])
    found = json.loads(capsys.readouterr().out)
    assert found[0]["found"][0]["path"] == query[0]
    main(["search", str(tmp_path / "photos.npz"), str(photos), *query[1:]])
    every = json.loads(capsys.readouterr().out)  # a folder of queries: each image finds itself, or its copy
    assert [one["query"] for one in every] == [str(path) for path in sorted(photos.rglob("*.png"))]
    assert min(one["found"][0]["cosine"] for one in every) > 0.99999
    shutil.rmtree(tmp_path / "made")
    main(["search", str(tmp_path / "photos.npz"), *query, "--what", str(weights["a"])])
    assert json.loads(capsys.readouterr().out) == found
    with pytest.raises(SystemExit):
        main(["search", str(tmp_path / "photos.npz"), *query, "--what", str(weights["b"])])
    assert "is not the embedder that wrote" in capsys.readouterr().err
