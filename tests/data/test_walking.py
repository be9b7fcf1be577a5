"""A folder's images are found by name, in the order of paths, and remembered until a folder changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wingbar.data import walking
from wingbar.data.walking import find_images, walk
from wingbar.errors import UserError


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """The folders that are looked into, by name, where everything is old and large enough to be remembered."""
    seen, scandir = [], os.scandir
    monkeypatch.setattr(walking, "LARGE", 1)
    monkeypatch.setattr(walking, "SETTLED", -(10**12))
    monkeypatch.setattr(os, "scandir", lambda folder: seen.append(os.path.basename(folder)) or scandir(folder))
    return seen


def grow(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_the_order_is_that_of_paths_whatever_is_in_the_names(tmp_path):
    names = ["a b/1.png", "a/2.png", "a.png", "a/b/c.png", "a-b/3.png", "a/b.png", "A/4.png", "é/5.png", "a/B.png"]
    found = sorted(path for path in grow(tmp_path, *names).rglob("*") if path.is_file())
    assert find_images(tmp_path) == found and list(walk(tmp_path).names) == [
        path.relative_to(tmp_path).as_posix() for path in found
    ]


def test_only_folders_that_changed_are_looked_into_again(tmp_path, scanned):
    grow(tmp_path / "p", "a/1.png", "a/2.png", "b/3.png", "b/c/4.png", "5.png")
    first = walk(tmp_path / "p")
    assert sorted(scanned) == ["a", "b", "c", "p"]
    scanned.clear()
    assert walk(tmp_path / "p") == first and scanned == []
    (tmp_path / "p" / "a" / "1.png").unlink()
    grow(tmp_path / "p", "b/c/6.png", "d/7.png")
    assert walk(tmp_path / "p").names == ("5.png", "a/2.png", "b/3.png", "b/c/4.png", "b/c/6.png", "d/7.png")
    assert sorted(scanned) == ["a", "c", "d", "p"]
    scanned.clear()
    (tmp_path / "p" / "a").rename(tmp_path / "p" / "z")  # with the time of change that it had
    assert walk(tmp_path / "p").names[-1] == "z/2.png" and sorted(scanned) == ["p", "z"]


def test_links_are_looked_at_each_time(tmp_path, scanned):
    grow(tmp_path, "p/1.png", "other/2.png", "more/3.png")
    (tmp_path / "p" / "link").symlink_to(tmp_path / "now")
    (tmp_path / "now").symlink_to(tmp_path / "other")
    assert walk(tmp_path / "p") == (("1.png", "link/2.png"), ("link/2.png",))
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to(tmp_path / "more")  # p itself does not change
    assert walk(tmp_path / "p") == (("1.png", "link/3.png"), ("link/3.png",))
    (tmp_path / "now").unlink()
    assert walk(tmp_path / "p").names == ("1.png", "link")  # gone: an unreadable image
    (tmp_path / "now").symlink_to(tmp_path / "p")  # a circle
    assert walk(tmp_path / "p") == (("1.png",), ())


def test_a_damaged_memory_and_one_that_cannot_be_written_are_no_matter(tmp_path, scanned, monkeypatch):
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    grow(tmp_path / "p", "a/1.png")
    first = walk(tmp_path / "p")
    (memory,) = (tmp_path / "cache" / "listings").iterdir()
    for content in (b"", b"12\n{}", memory.read_bytes().replace(b"1.png", b"9.png")):
        memory.write_bytes(content)
        assert walk(tmp_path / "p") == first
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "p" / "a" / "1.png"))
    assert walk(tmp_path / "p") == first


def test_a_young_folder_is_not_trusted(tmp_path, scanned, monkeypatch):
    """A file that comes right after a look leaves the folder's time as it was, on some systems."""
    monkeypatch.setattr(walking, "SETTLED", 10**15)
    grow(tmp_path / "p", "1.png")
    walk(tmp_path / "p")
    walk(tmp_path / "p")
    assert scanned == ["p", "p"]


def test_no_image_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no image in .* looked for \.avif \.bmp"):
        walk(grow(tmp_path, "notes.txt"))
