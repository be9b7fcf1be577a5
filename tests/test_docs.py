"""What pages tell people to type exists: their parsers read commands, the help has the words, links lead somewhere.

What the README has is run as well, and the Python of docs/start.md (test_readme)."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from wingbar.cli import COMMANDS
from wingbar.completion import _words
from wingbar.config.limits import check_limits
from wingbar.config.recipes import recipe_named
from wingbar.config.words import parse
from wingbar.data.upkeep import KINDS
from wingbar.evaluate.doctor.options import Check
from wingbar.evaluate.options import Evaluate
from wingbar.reproduce.bench.command import BENCHES
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.trial import Try
from wingbar.show.options import Show
from wingbar.show.report.options import AskedReport
from wingbar.submit.command import _parted
from wingbar.submit.script import Submit
from wingbar.train.command import Resume, config_file, parse_settings
from wingbar.use.classify.options import Classify
from wingbar.use.explore.options import Explore
from wingbar.use.export.options import Export
from wingbar.use.options import Embed, Search
from wingbar.use.pickoptions import Pick

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOW = [page for page in PAGES if page.name not in ("CHANGELOG.md", "decisions.md") and page.parent.name != "notebook"]
FORMS = {
    **{"try": Try, "resume": Resume, "evaluate": Evaluate, "embed": Embed, "search": Search, "classify": Classify},
    **{"explore": Explore, "show": Show, "report": AskedReport, "export": Export, "reproduce": Reproduce},
    **{"data check": Check, "data pick": Pick},
    **{f"bench {name}": form for name, form in BENCHES.items()},
    **{f"cache {name}": form for name, form in KINDS.items()},
}
BARE = {"recipes", "doctor", "completion"}  # they take no options


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def snippets(page: Path) -> str:
    """The text between fences that says no language."""
    return "\n".join(re.findall(r"^```\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE))


def inline(page: Path) -> list[str]:
    """Code in sentences."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def words_of(line: str) -> list[str]:
    """Of a command line: of alternatives the first, brackets and dots that stand for more gone."""
    return shlex.split(re.sub(r" \| \S+|…|[][]", "", line), comments=True)


def read(words: list[str]) -> None:
    """As the command would read it."""
    command, *rest = words
    if command == "train":
        recipe = rest.pop(0) if rest and not rest[0].startswith("-") else "default"
        check_limits(parse_settings(config_file(rest)[1], recipe_named(recipe)))
    elif command == "submit":
        own, rest = _parted(rest)
        parse(Submit, command, own)
        if rest and not rest[0].endswith(".py"):
            read([*rest])
    elif command in BARE:
        assert not rest or rest == ["bash"]
    elif command in FORMS:
        parse(FORMS[command], command, rest)
    else:
        parse(FORMS[f"{command} {rest[0]}"], command, rest[1:])


@pytest.mark.parametrize("page", [page for page in PAGES if "\nwingbar " in snippets(page)], ids=named)
def test_every_command_in_a_snippet_can_be_typed(page):
    lines = [line for line in snippets(page).splitlines() if line.startswith("wingbar ")]
    for line in lines:
        read(words_of(line)[1:])


@cache
def options(*command: str) -> set[str]:
    """What the help of a command lists."""
    return set(_words(COMMANDS[command[0]], *command[1:]))


@pytest.mark.parametrize("page", NOW, ids=named)
def test_every_word_in_a_sentence_is_one_of_its_command(page):
    """Such commands are often cut short; a training's settings depend on the recipe and are read."""
    for code in inline(page):
        words = words_of(code) if re.match(r"wingbar [a-z]", code) else []
        if words[1:2] == ["train"] and words[2:] not in ([], ["--help"]):
            read(words[1:])
        elif words:
            assert words[1] in COMMANDS, code
            part = [word for word in words[2:3] if f"{words[1]} {word}" in FORMS]
            assert {word for word in words if word.startswith("--")} <= options(words[1], *part) | {"--help"}, code


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as sites make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", text):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_the_site_is_built_without_a_warning(tmp_path):
    """`make docs`; strict, so a page or an anchor that is not there stops it."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    pages = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "start.html", "recipes.html", "api.html", "SECURITY.html"} <= pages
    fetched = [
        path.name for path in (tmp_path / "site").rglob("*.html") if re.search('src="(https?:)?//', path.read_text())
    ]
    assert not fetched
