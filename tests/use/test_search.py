"""Search finds what a comparison of everything with everything finds, whatever the blocks, ties included."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from wingbar.cli import main
from wingbar.errors import UserError
from wingbar.use import exact
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow, Maker
from wingbar.use.exact import nearest, pairs_above
from wingbar.use.formats import write_embeddings

COUNT, DIM = 300, 24


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Half precision, with rows that are equal, rows that differ in length only, and one that is zero."""
    rows = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float16)
    rows[[40, 199, 260]] = rows[3]
    rows[77] = rows[3] * np.float16(2)
    rows[120] = 0
    return rows


@pytest.fixture(scope="module")
def queries(vectors) -> np.ndarray:
    others = np.random.default_rng(1).normal(size=(9, DIM)).astype(np.float32)
    return np.concatenate([others, vectors[[3, 120]].astype(np.float32)])


def cosines(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """One pair after the other, by the definition."""
    lengths = [np.linalg.norm(one.astype(np.float64), axis=1) for one in (queries, vectors)]
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    return (products / np.maximum(np.outer(*lengths), 1e-12)).round(9)


def ranked(similar: np.ndarray, k: int) -> np.ndarray:
    return np.stack([sorted(range(len(row)), key=lambda place: (-row[place], place))[:k] for row in similar.tolist()])


@pytest.mark.parametrize("block", [7, 64, 16_384])
@pytest.mark.parametrize("k", [1, 5, COUNT])
def test_nearest_are_those_of_brute_force(block, k, vectors, queries, monkeypatch):
    monkeypatch.setattr(exact, "QUERIES", 4)
    monkeypatch.setattr(exact, "CROWD", 2)
    similar, found = cosines(queries, vectors), nearest(queries, vectors, k, block=block)
    wanted = ranked(similar, k)
    assert np.array_equal(found.rows, wanted)
    assert np.array_equal(found.cosines, np.take_along_axis(similar, wanted, axis=1))


def test_a_collapsed_encoder_gives_the_first_rows():
    same = np.ones((50, 8), dtype=np.float16)
    assert nearest(same[:2], same, 4, own=np.array([0, 1]), block=16).rows.tolist() == [[1, 2, 3, 4], [0, 2, 3, 4]]


def test_what_float32_cannot_tell_apart_is_told_apart():
    """Rows whose cosines differ by less than float32's last digit."""
    angles = np.array([3e-4, 1e-4, 2e-4, 0.5])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert nearest(np.array([[1.0, 0.0]]), rows, 4, block=2).rows.tolist() == [[1, 2, 0, 3]]


def test_own_rows_other_classes_and_the_too_different_are_left_out(vectors, queries):
    allowed = np.arange(COUNT) % 3 == 0
    own, similar = np.array([3, 120]), cosines(vectors[[3, 120]], vectors)
    similar[[0, 1], own] = -2
    similar[:, ~allowed] = -2
    found = nearest(vectors[own], vectors, 10, own=own, allowed=allowed, least=0.3, block=50)
    for row, line in enumerate(ranked(similar, 10)):
        kept = [place for place in line if similar[row, place] >= 0.3]
        assert found.rows[row].tolist() == kept + [-1] * (10 - len(kept))


@pytest.mark.parametrize("block", [11, 16_384])
def test_pairs_above_a_cosine_are_those_of_brute_force(block, vectors, monkeypatch):
    monkeypatch.setattr(exact, "QUERIES", 32)
    first, second = np.nonzero(np.triu(cosines(vectors, vectors) >= 0.5, k=1))
    found = pairs_above(vectors, 0.5, block=block)
    assert sorted(zip(*(one.tolist() for one in found), strict=True)) == [
        *zip(first.tolist(), second.tolist(), strict=True)
    ]
    monkeypatch.setattr(exact, "MOST", 3)
    with pytest.raises(UserError, match="more than 3 pairs"):
        pairs_above(vectors, 0.5, block=block)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(vectors, tmp_path_factory):
    """An embeddings file with classes, of images that exist, but whose embedder is nowhere."""
    folder = tmp_path_factory.mktemp("search")
    rows = [
        IndexRow(str(folder / f"{row % 4}" / f"{row}.png"), f"class {row % 4}", f"{row:032x}") for row in range(COUNT)
    ]
    for row in (3, 40, 199):
        path = folder / f"{row % 4}" / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 10), (row, 90, 10)).save(path)
    about = IndexAbout(Maker(str(folder / "gone.safetensors"), identity="1"), DIM, "fp16")
    write_embeddings(folder / "file.npz", Embeddings(about, rows, vectors))
    return folder / "file.npz"


@pytest.fixture
def searched(file, capsys):
    def search(*words: str) -> list[dict]:
        main(["search", str(file), *words, "--json", "--quiet"])
        return json.loads(capsys.readouterr().out)

    return search


def test_rows_and_paths_are_queries(searched, vectors):
    similar = cosines(vectors[[5]], vectors)
    similar[0, 5] = -2
    by_row, by_path = searched("--row", "5", "--k", "3"), searched("--path", "1/5.png", "--k", "3")
    assert by_row == by_path
    assert [hit["row"] for hit in by_row[0]["found"]] == ranked(similar, 3)[0].tolist()
    only = searched("--row", "5", "--class", "class 2", "--threshold", "0.2")[0]["found"]
    wanted = [row for row in ranked(similar, COUNT)[0] if row % 4 == 2 and similar[0, row] >= 0.2][:10]
    assert [hit["row"] for hit in only] == wanted and {hit["class"] for hit in only} == {"class 2"}


def test_duplicates_are_groups(searched):
    assert [[hit["row"] for hit in one["found"]] for one in searched("--duplicates", "0.999")] == [
        [3, 40, 77, 199, 260]
    ]
    assert searched("--duplicates", "0.999", "--class", "class 1") == [] != searched("--duplicates", "0.9")
    same = searched("--duplicates", "0.999", "--class", "class 3", "class 0")
    assert [hit["row"] for hit in same[0]["found"]] == [3, 40, 199, 260]


def test_a_table_says_the_same_and_the_sheet_is_drawn(file, tmp_path, capsys):
    main(["search", str(file), "--row", "3", "--k", "2", "--sheet", str(tmp_path / "found.png")])
    said = capsys.readouterr()
    assert "1.0000" in said.out and "40.png" in said.out and "found.png" in said.err
    with Image.open(tmp_path / "found.png") as sheet:
        assert sheet.format == "PNG" and sheet.width > sheet.height
    main(["search", str(file), "--row", "3", "--threshold", "1", "--class", "class 1", "--k", "1"])
    main(["search", str(file), "--row", "8", "--threshold", "1"])
    assert capsys.readouterr().out.endswith("Nothing was found.\n")


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--row", "300"), "rows 0 to 299"),
        (("--path", "nobody.png"), "no image"),
        (("--path", "png", "--row", "1"), "give one of them"),
        (("--row", "1", "--class", "class 9"), "did you mean"),
        (("{photo}",), "not where it was"),
    ],
)
def test_a_mistake_is_a_sentence(words, about, file, capsys):
    photo = str(file.parent / "3" / "3.png")
    with pytest.raises(SystemExit) as stop:
        main(["search", str(file), *(word.format(photo=photo) for word in words), "--quiet"])
    said = capsys.readouterr()
    assert stop.value.code == 2 and about in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("library", ["hnswlib", "faiss"])
def test_a_graph_says_how_much_it_finds(library, file, searched, capsys):
    pytest.importorskip(library)
    assert searched("--row", "5", "--k", "3", "--ann", library) == searched("--row", "5", "--k", "3")
    main(["search", str(file), "--row", "5", "--ann", library])
    assert f"{library} finds 100.0 %" in capsys.readouterr().err
