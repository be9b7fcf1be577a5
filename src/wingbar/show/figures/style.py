"""The one look of all our pictures: colours, type, and files of which each is whole or not there.

The colours are Okabe and Ito's, which people with any kind of colour vision tell apart. Matplotlib is imported where
it is needed, so that training starts without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wingbar.errors import UserError
from wingbar.files import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
DPI = 200  # of PNG files, and of photographs inside the others
MAKER = "wingbar"
SAME_BYTES: dict[str, dict[str, str | None]] = {  # no dates, no versions: the same picture is the same file
    "png": {"Software": MAKER},
    "svg": {"Creator": MAKER, "Date": None},
    "pdf": {"Creator": MAKER, "Producer": MAKER, "CreationDate": None},
}
FILES = {"svg.fonttype": "none", "svg.hashsalt": MAKER, "pdf.fonttype": 42, "image.composite_image": False}


@dataclass(frozen=True)
class Style:
    """What a picture is drawn with; colours as #rrggbb."""

    paper: str  # behind everything
    ink: str  # text and marks
    pale: str  # text and lines that step back
    faint: str  # grids and mounts
    right: str
    wrong: str
    heat: str  # Matplotlib's name of a perceptually uniform colour map that begins at the paper's colour
    series: tuple[str, ...]  # curves, classes, encoders, in this order


LIGHT = Style(
    paper="#ffffff",
    ink="#26241f",
    pale="#6f6a60",
    faint="#e4e0d8",
    right="#0072b2",
    wrong="#d55e00",
    heat="magma_r",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#26241f"),
)
DARK = Style(
    paper="#16181c",
    ink="#ece8e1",
    pale="#a29d93",
    faint="#34373d",
    right="#56b4e9",
    wrong="#f0884a",
    heat="magma",
    series=("#56b4e9", "#f0884a", "#2fc79b", "#e29cc2", "#f0b43c", "#f0e442", "#ece8e1"),
)
THEMES: Mapping[str, Style] = {"light": LIGHT, "dark": DARK}


@contextmanager
def figure(
    width: float, height: float, style: Style, *, layout: Literal["constrained"] | None = "constrained"
) -> Iterator[Figure]:
    """An empty figure of this many inches; inside the context, all that is drawn is in the style.

    >>> with figure(4.0, 3.0, LIGHT) as page:
    ...     _ = page.subplots().plot([0, 1], [0, 1])
    """
    _matplotlib()
    from matplotlib.figure import Figure

    with _only(_parameters(style)):
        page = Figure(figsize=(width, height), dpi=DPI, layout=layout)
        yield page
        if layout:
            page.draw_without_rendering()  # ticks are made when they are first drawn: now, in the style


def save(page: Figure, stem: Path, formats: Sequence[Format] = ("png", "svg")) -> list[Path]:
    """Write stem.png, stem.svg, …; drawn in memory first, so that a file is replaced by a whole one or left alone."""
    contents = {stem.with_name(f"{stem.name}.{kind}"): drawn(page, kind) for kind in formats}
    for path, content in contents.items():
        with atomic(path) as file:
            file.write_bytes(content)
    return list(contents)


def drawn(page: Figure, kind: Format) -> bytes:
    """The picture as a file's content; text stays text in SVG, and fonts are embedded in PDF."""
    buffer = BytesIO()
    with _only(FILES):
        page.savefig(buffer, format=kind, dpi=DPI, facecolor=page.get_facecolor(), metadata=SAME_BYTES[kind])
    return buffer.getvalue()


@contextmanager
def _only(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Inside, Matplotlib's own defaults with these changes, whatever somebody's matplotlibrc says."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names of files may be in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(parameters)
        yield


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("pictures are drawn with Matplotlib, which is not installed; pip install matplotlib") from error
    return matplotlib


def _parameters(style: Style) -> dict[str, Any]:
    """The style as Matplotlib knows it; DejaVu Sans comes with it, so that pictures look the same everywhere."""
    from cycler import cycler

    return {
        "font.family": "DejaVu Sans",
        "text.parse_math": False,  # names of files may contain $
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.titlelocation": "left",
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=style.series),
        "grid.linewidth": 0.6,
        "grid.color": style.faint,
        "axes.edgecolor": style.pale,
        "axes.facecolor": style.paper,
        "figure.facecolor": style.paper,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "legend.labelcolor"), style.ink),
        **dict.fromkeys(("xtick.color", "ytick.color"), style.pale),
    }
