"""Files that appear whole or not at all."""

import os

import pytest

from wingbar.files import atomic, check_place
from wingbar.types import UserError


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "page.html"
    with atomic(path) as file:
        file.write_text("half")
        assert not path.exists()
        file.write_text("all of it")
    assert path.read_text() == "all of it" and list(path.parent.iterdir()) == [path]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as file:
        file.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_to_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    check_place(tmp_path / "new" / "folder", remedy="go elsewhere")
    with pytest.raises(UserError, match="is a file or below one; go elsewhere"):
        check_place(tmp_path / "file" / "folder", remedy="go elsewhere")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(UserError, match="cannot be written to; go elsewhere"):
        check_place(tmp_path / "new" / "folder", remedy="go elsewhere")
