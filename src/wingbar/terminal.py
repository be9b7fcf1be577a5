"""Words for people: on the terminal, in a page. Names of files stand in them, and a name can hold anything."""

from __future__ import annotations

import re
import sys

from rich.console import Console
from rich.text import Text

# Control characters but for tab and newline, marks that turn the direction of writing, and bytes that are no text.
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with everything escaped that would steer a terminal, or that no terminal and no browser can show.

    >>> printable("wing\x1b[2J\udcff bar")
    'wing\\x1b[2J\\udcff bar'
    """
    return HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(sentence: str) -> None:
    """A line on stdout: what was asked for."""
    print(printable(sentence), flush=True)


def aside(sentence: str) -> None:
    """A line on stderr: how it goes."""
    print(printable(sentence), file=sys.stderr, flush=True)


def note(sentence: str) -> None:
    """A line on stderr that nobody has to act on."""
    aside(f"note: {sentence}")


class Terminal(Console):
    """A console for tables and lines in which [brackets] are brackets: style comes from arguments, never from text."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **how: object) -> Text:
        """Text that came without a style, cells of tables among it."""
        return super().render_str(printable(text), **how)  # type: ignore[arg-type]
