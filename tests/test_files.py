"""Files that appear whole or not at all."""

import json
import os
import sys
from subprocess import PIPE, Popen

import pytest

from wingbar.errors import UserError
from wingbar.files import NotWritten, _sweep, append, atomic, check_place, read_lines, write_text
from wingbar.process import here


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


def test_what_the_killed_left_goes_and_what_others_write_stays(tmp_path):
    half = (
        "import sys, time; from pathlib import Path; from wingbar.files import partial_of; place = Path(sys.argv[1]);"
        "partial_of(place / 'a').write_text('half'); partial_of(place / 'folder').mkdir(); print(flush=True);"
        "time.sleep(60)"
    )
    with Popen([sys.executable, "-c", half, str(tmp_path)], stdout=PIPE) as writer:
        writer.stdout.readline()
        whose = sorted(path.name for path in tmp_path.iterdir())
        elsewhere = whose[0].replace(here(), "0" * 8)
        (tmp_path / elsewhere).write_text("of another host, whose processes have numbers of their own")
        write_text(tmp_path / "b", "whole")
        assert {path.name for path in tmp_path.iterdir()} == {*whose, elsewhere, "b"}
        writer.kill()
    _sweep.cache_clear()  # a process looks once
    write_text(tmp_path / "b", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {elsewhere, "b"}


def test_places_that_cannot_be_written_to_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    check_place(tmp_path / "new" / "folder", remedy="go elsewhere")
    with pytest.raises(UserError, match="is a file or below one; go elsewhere"):
        check_place(tmp_path / "file" / "folder", remedy="go elsewhere")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(UserError, match="cannot be written to; go elsewhere"):
        check_place(tmp_path / "new" / "folder", remedy="go elsewhere")


def test_no_room_names_the_file_and_keeps_its_last_version(tmp_path, no_room):
    path = tmp_path / "page.html"
    with (
        no_room(10),
        pytest.raises(NotWritten, match=r"page\.html could not be written: File too large; nothing of it"),
    ):
        write_text(path, "far too long")
    assert not list(tmp_path.iterdir())
    write_text(path, "old")
    with no_room(10), pytest.raises(NotWritten, match="its last version is still whole"):
        write_text(path, "far too long")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_record_that_broke_off_goes_on_with_whole_lines(tmp_path, no_room):
    path = tmp_path / "metrics.jsonl"
    append(path, [{"step": 1}])
    with no_room(20), pytest.raises(NotWritten, match=r"metrics\.jsonl could not be written"):
        append(path, [{"step": 2, "loss": 0.123}])
    assert path.stat().st_size == 20  # half a line
    append(path, [{"step": 3}], durable=True)
    assert read_lines(path) == [{"step": 1}, {"step": 3}]


def test_names_that_are_no_text_come_back_from_json(tmp_path):
    name = os.fsdecode(b"wing\xff.jpg")
    write_text(tmp_path / "a.json", json.dumps({"name": name}, ensure_ascii=False))
    append(tmp_path / "a.jsonl", [{"name": name}])
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"name": name}
    assert read_lines(tmp_path / "a.jsonl") == [{"name": name}]
