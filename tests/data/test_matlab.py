"""MATLAB files against scipy, which wrote them; damaged ones, on which scipy crashes."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from wingbar.data import matlab
from wingbar.data.matlab import read_matlab

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))

from mutation import mutated

CELLS = np.array([["n02085620/a.jpg"], ["n02085936/b.jpg"], ["é"]], dtype=object)
LINES = [(1.5, "one.jpg", np.array([1, 2])), (2.5, "two.jpg", np.array([3]))]
STRUCT = np.array(LINES, dtype=[(name, object) for name in "abc"])
VARIABLES = {
    "one": 7,
    "half": 0.5,
    "row": np.arange(5, dtype=np.uint8),
    "table": np.arange(12.0).reshape(3, 4),
    "deep": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    **{kind: np.array([[1, 2], [3, 4]], dtype=kind) for kind in ("i1", "u2", "i4", "u4", "i8", "u8", "f4")},
    "word": "blue jay",
    "files": CELLS,
    "lines": STRUCT,
    "single": STRUCT[:1],
    "nested": np.array([CELLS, 3], dtype=object),
    "long_name_of_a_variable": np.ones((1, 300)),
}


def same(found: object, truth: object) -> None:
    """Values, shapes and words alike; which kind of number holds a value does not matter."""
    found, truth = np.asarray(found), np.asarray(truth)
    assert found.shape == truth.shape and found.dtype.names == truth.dtype.names
    for name in truth.dtype.names or ():
        same(found[name], truth[name])
    if truth.dtype.names is None and truth.dtype == object:
        for one, other in zip(found.flat, truth.flat, strict=True):
            same(one, other)
    elif truth.dtype.names is None:
        assert (found == truth).all()


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def file(request, tmp_path) -> Path:
    savemat(tmp_path / "a.mat", VARIABLES, do_compression=request.param)
    return tmp_path / "a.mat"


def test_variables_are_those_that_scipy_reads(file):
    truth, found = loadmat(file, squeeze_me=True), read_matlab(file)
    assert found.keys() == VARIABLES.keys()
    for name, value in found.items():
        same(value, truth[name])


def test_a_thousand_damaged_files_are_read_or_refused(file):
    """scipy 1.17 ends the whole process after some hundreds."""
    content, rng, refused = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(1000):
        file.write_bytes(mutated(content, rng))
        try:
            read_matlab(file)
        except ValueError as error:
            assert str(error).startswith("a.mat is no MATLAB file that can be read: ") and "\n" not in str(error)
            refused += 1
    assert 100 < refused < 1000


def element(kind: int, content: bytes) -> bytes:
    return np.array([kind, len(content)], "<u4").tobytes() + content + bytes(-len(content) % 8)


def cells(inside: bytes, *shape: int) -> bytes:
    flags, name = element(6, np.array([1, 0], "<u4").tobytes()), element(1, b"x")
    return element(14, flags + element(5, np.array(shape, "<i4").tobytes()) + name + inside)


@pytest.mark.parametrize(
    ("variable", "why"),
    [
        (cells(b"", 2**30, 2**30), "do not fill"),
        (element(14, bytes(8))[:12], "cut off"),
        (np.array([14, 2**31], "<u4").tobytes(), "promised"),
        (np.array([6 + (200 << 16), 0], "<u4").tobytes(), "cannot stand in four"),
        (element(15, b"nothing"), "incorrect header"),
        (b"", None),
    ],
)
def test_what_is_promised_takes_no_memory(variable, why, tmp_path):
    (tmp_path / "a.mat").write_bytes(b"MATLAB".ljust(124) + b"\x00\x01IM" + variable)
    if why is None:
        assert read_matlab(tmp_path / "a.mat") == {}
    else:
        with pytest.raises(ValueError, match=why):
            read_matlab(tmp_path / "a.mat")


def test_cells_in_cells_have_an_end(tmp_path):
    variable = cells(b"", 0, 0)
    for _ in range(50):
        variable = cells(variable, 1, 1)
    (tmp_path / "a.mat").write_bytes(b"MATLAB".ljust(124) + b"\x00\x01IM" + variable)
    with pytest.raises(ValueError, match="9 deep"):
        read_matlab(tmp_path / "a.mat")


def test_what_was_compressed_unpacks_to_so_much_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(matlab, "LONGEST", 10_000)
    savemat(tmp_path / "a.mat", {"zeros": np.zeros(10_000)}, do_compression=True)
    assert (tmp_path / "a.mat").stat().st_size < 1000
    with pytest.raises(ValueError, match="cut off"):
        read_matlab(tmp_path / "a.mat")
    nested = element(15, zlib.compress(element(15, zlib.compress(cells(b"", 0, 0)))))
    (tmp_path / "b.mat").write_bytes(b"MATLAB".ljust(124) + b"\x00\x01IM" + nested)
    with pytest.raises(ValueError, match="kind 15"):
        read_matlab(tmp_path / "b.mat")
