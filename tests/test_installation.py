"""`wingbar doctor` says what is wrong with a machine and what to do; `wingbar completion` knows what the help lists."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from wingbar import installation
from wingbar.cli import COMMANDS, main
from wingbar.config.recipes import RECIPES

ROOT = Path(__file__).parents[1]


def found() -> dict[str, installation.Finding]:
    return {one.what: one for one in installation.findings()}


def test_a_machine_on_which_tests_run_is_well(capsys):
    assert not [one for one in found().values() if one.serious]
    main(["doctor"])
    assert capsys.readouterr().out.endswith("wingbar can train here.\n")


def test_versions_and_room_are_those_of_this_machine():
    told = found()
    assert (
        f"torch {version('torch')}" in told["packages"].found and f"numpy {version('numpy')}" in told["packages"].found
    )
    assert f"{len(os.sched_getaffinity(0))} cores" in told["CPU"].found


def test_torch_that_cannot_be_imported_is_said_with_all_the_rest(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    said = capsys.readouterr()
    assert stop.value.code == 2 and "cache" in said.out and "GPU" not in said.out
    assert said.err.count("\n") == 1 and "pip install" in said.err and "torch" in said.err


@pytest.mark.parametrize("there, told", [("not installed", "missing"), ("1.9.9", "1.9.9"), ("2", "2")])
def test_a_package_that_is_missing_or_too_old_is_named(there, told, monkeypatch):
    installed = installation.installed
    monkeypatch.setattr(installation, "installed", lambda name: there if name == "torch" else installed(name))
    least = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert found()["torch"] == ("torch", told, f"pip install 'torch>={least}'", True)


def test_a_full_disk_and_a_cache_that_is_a_file_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(100, 99, 1))
    (tmp_path / "file").touch()
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "file"))
    told = found()
    assert "make room" in told["disk"].remedy and "WINGBAR_CACHE" in told["cache"].remedy


# --- completion ------------------------------------------------------------------------------------------------------


def test_the_tab_key_offers_what_the_help_lists(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    asked = [
        "wingbar tr",
        "wingbar train mo",
        "wingbar bench st",
        "wingbar evaluate a --prot",
        "wingbar cache clear --un",
    ]
    lines = [
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _wingbar; echo ${{COMPREPLY[@]}}"
        for words in asked
    ]
    lines.append("COMP_WORDS=(wingbar ''); COMP_CWORD=1; _wingbar; echo ${COMPREPLY[@]}")
    done = subprocess.run(["bash", "-c", "\n".join([script, *lines])], capture_output=True, text=True, check=True)
    *some, commands = (line.split() for line in done.stdout.splitlines())
    recipes = sorted(name for name in RECIPES if name.startswith("mo"))
    assert [sorted(one) for one in some] == [["train", "try"], recipes, ["step"], ["--protocols"], ["--unused-days"]]
    assert {*commands, "completion"} == set(COMMANDS)


KEYS = {"wingbar train moco-t\t": "train moco-tuned", "wingbar bench st\t": "bench step"}


@pytest.mark.parametrize("shell", ["bash --norc -i", "zsh -f -i"])
def test_shells_complete_what_is_typed(shell, capsys, tmp_path):
    """In a terminal, in which `wingbar` writes down what it was called with."""
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell.split()[0]} is not installed")
    main(["completion", shell.split()[0]])
    said, script = tmp_path / "said", tmp_path / "script"
    script.write_text(f"{capsys.readouterr().out}\nwingbar() {{ echo $@ >> {said}; }}\nwingbar ready\n")
    ours, theirs = pty.openpty()
    screen = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    with subprocess.Popen(shell.split(), cwd=tmp_path, **screen) as one:
        told = []
        for typed, expected in {f". {script}": "ready", **KEYS}.items():
            os.write(ours, f"{typed}\n".encode())
            told.append(expected)
            seen = wait_for(ours, lambda: said.exists() and said.read_text().split("\n")[:-1] == told)
            assert said.read_text().split("\n")[:-1] == told, seen
        one.kill()
    os.close(ours)
    os.close(theirs)


def wait_for(terminal: int, condition: Callable[[], bool]) -> str:
    """What was shown until then."""
    shown, until = "", time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


# --- what is released ------------------------------------------------------------------------------------------------


def test_the_version_is_the_same_wherever_it_is_said():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    assert project["version"] == cited and project["version"].partition(".dev")[0] == newest
