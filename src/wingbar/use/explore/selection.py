"""What somebody chose among the images, to take away: a table of paths, a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.errors import UserError
from wingbar.files import table_text
from wingbar.show.figures.cells import TextCell, draw_cells
from wingbar.show.figures.style import drawn
from wingbar.use.explore.album import Album
from wingbar.use.sheets import in_square

__all__ = ["sheet", "table"]

SHEET, ACROSS = 96, 12  # pictures of a contact sheet, all and in a row


def table(album: Album, rows: Sequence[int]) -> bytes:
    """Paths and classes as CSV, which `wingbar classify` reads; no cell of it is a formula."""
    return table_text(["path", "label"], [[album.rows[row].path, album.rows[row].label] for row in rows]).encode()


def sheet(album: Album, rows: Sequence[int], *, title: str) -> bytes:
    """A picture of the first of them, as PNG."""
    if not rows:
        raise UserError("a contact sheet of no images is empty; choose some")
    cells = [TextCell(in_square(album.thumbnail(row)), album.title(row)) for row in rows[:SHEET]]
    lines = [cells[start : start + ACROSS] for start in range(0, len(cells), ACROSS)]
    note = f"The first {SHEET} of {len(rows):,} images." if len(rows) > SHEET else ""
    return drawn(draw_cells(lines, title=title, note=note), "png")
