"""What `wingbar embed` and `wingbar search` can be asked, the texts are their help; and what of it is refused."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from wingbar.config.limits import LIMITS, check_device
from wingbar.config.words import OUT
from wingbar.data.shards import is_there
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted, find_wanted
from wingbar.files import check_place

ENDINGS = (".parquet", ".npz", ".map")


@dataclass(frozen=True)
class Embed:
    """Write the embeddings of images to a file; what it holds already is not computed again."""

    what: Annotated[str, tyro.conf.Positional]
    """Run (folder), embedder (folder), weights file, or name of a model with --encoder.weights."""
    images: Annotated[str, tyro.conf.Positional]
    """Folder of images, tar shards, CSV file with a column `path`, unpacked data set, or `lookalike`."""
    out: Annotated[Path | None, OUT] = None
    """File to write: .parquet (needs pyarrow), .npz, or .map, a folder with a memory map; IMAGES.parquet if not given.
    """
    dtype: Literal["fp16", "fp32"] | None = None
    """Of the numbers; as the file has them, in a new one fp16."""
    map: Literal["pca", "umap", "tsne"] | None = None
    """Add a place in two dimensions for every image: columns projection_x and projection_y."""
    neighbours: int | None = None
    """Add so many nearest images to every image: column neighbors."""
    drop: bool = False
    """Drop the rows of files that are gone; otherwise they are kept, and counted."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of a weights file that does not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of a model that is given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    name: Annotated[str | None, tyro.conf.arg(name="data.name")] = None
    """Which data set IMAGES is: folder, flat, csv, cub200, …; guessed if not given."""
    size: Annotated[int | None, tyro.conf.arg(name="data.size")] = None
    """Side of the images the encoder sees, 32 to 448; its own if not given."""
    workers: Annotated[int, tyro.conf.arg(name="data.workers")] = 0
    """Threads that read and decode; 0: one per core."""
    batch: int = 32
    """Images embedded at once."""
    device: str = "auto"
    """auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""


@dataclass(frozen=True)
class Search:
    """Find the images in an embeddings file that are most similar to others, or to one another."""

    file: Annotated[Path, tyro.conf.Positional]
    """What `wingbar embed` wrote."""
    query: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Image files or folders of them; they are embedded with the file's own embedder."""
    row: tuple[int, ...] = ()
    """Rows of the file as queries, the first is 0."""
    path: tuple[str, ...] = ()
    """Images of the file as queries, by their paths or ends of these."""
    k: int = 10
    """Most images found for a query."""
    threshold: float = -1.0
    """Least cosine of what is found."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(name="class")] = ()
    """Search among images of these classes only."""
    duplicates: float | None = None
    """In place of queries: groups of images that a cosine of so much or more connects."""
    json: bool = False
    """Print JSON in place of a table."""
    sheet: Path | None = None
    """Draw the images found, too: a PNG file."""
    ann: Literal["hnswlib", "faiss"] | None = None
    """Approximate search by this library, whose index is kept beside the file; its recall is measured and said."""
    what: str | None = None
    """Where the file's embedder is now, if no longer where it was."""
    device: str = "auto"
    """Of the embedder: auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""


# --- what is refused before torch is imported ------------------------------------------------------------------------


def check_embed(asked: Embed) -> Wanted:
    """The encoder, if everything makes sense that can be known without looking at images."""
    check_device(asked.device)
    check_ending(place_of(asked))
    check_place(place_of(asked).absolute().parent, remedy="give --out another place")
    if place_of(asked).suffix != ".map" and place_of(asked).is_dir():
        raise UserError(f"{place_of(asked)} is a folder; give --out another name")
    check_handling(images=asked.images, size=asked.size, batch=asked.batch, workers=asked.workers)
    if asked.neighbours is not None and asked.neighbours < 1:
        raise UserError(f"neighbours is {asked.neighbours}; give at least 1, or leave it out")
    return find_wanted(asked.what, weights=asked.weights)


def check_handling(*, images: str = "", size: int | None = None, batch: int = 1, workers: int = 0) -> None:
    """Refuse what no command does with images."""
    if images not in ("", "lookalike") and not is_there(images):
        raise UserError(f"{images} does not exist; give a folder of images, a CSV file, or `lookalike`")
    smallest, largest = LIMITS["data.size"]
    if size is not None and not smallest <= size <= largest:
        raise UserError(f"data.size is {size}; it must be at least {smallest} and at most {largest}")
    if batch < 1:
        raise UserError(f"batch {batch} embeds nothing; give at least 1")
    if workers < 0:
        raise UserError(f"data.workers is {workers}; choose 1 or more, or 0 for one per core")


def check_folder(out: Path, ours: Set[str], whose: str) -> None:
    """Refuse a folder that cannot be written to, or that holds what is not ours to replace."""
    check_place(out, remedy="give --out another folder")
    others = sorted({path.name for path in out.iterdir()} - ours) if out.exists() else []
    if others:
        raise UserError(f"{out} holds {others[0]}, which no {whose} has; give --out a folder of its own")


def place_of(asked: Embed) -> Path:
    """The file to write."""
    if asked.out is not None:
        return asked.out.expanduser()
    return Path(f"{Path(asked.images).expanduser().resolve().name.removesuffix('.csv')}.parquet")


def check_ending(file: Path) -> None:
    """Refuse what is no embeddings file by its name, and Parquet where nothing reads it."""
    if file.suffix not in ENDINGS:
        raise UserError(
            f"{file} ends with {file.suffix or 'nothing'}; an embeddings file ends with .parquet, .npz or .map"
        )
    if file.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(
            f"{file} needs pyarrow, which is not installed; pip install pyarrow, "
            f"or write {file.with_suffix('.npz').name}, which needs nothing"
        )


def check_search(asked: Search) -> None:
    """Refuse what makes no sense."""
    check_device(asked.device)
    check_ending(asked.file)
    _check_queries(asked)
    if asked.k < 1:
        raise UserError(f"k is {asked.k}; give at least 1")
    if not -1 <= asked.threshold <= 1:
        raise UserError(f"threshold is {asked.threshold}; a cosine lies between -1 and 1")
    if asked.duplicates is not None and not 0 < asked.duplicates <= 1:
        raise UserError(f"duplicates is {asked.duplicates}; a cosine that connects two images is above 0, say 0.95")
    if asked.ann and find_spec(asked.ann) is None:
        remedy = f"pip install {'faiss-cpu' if asked.ann == 'faiss' else asked.ann}, or search exactly, without --ann"
        raise UserError(f"{asked.ann} is not installed; {remedy}")
    if asked.sheet is not None:
        check_place(asked.sheet.absolute().parent, remedy="give --sheet another place")
        if asked.sheet.suffix != ".png":
            raise UserError(f"--sheet {asked.sheet} is drawn as PNG; give a name that ends with .png")
    check_there(asked.file)


def check_there(file: Path) -> None:
    """Refuse what is no embeddings file by its name, and one that nobody has written."""
    check_ending(file)
    if not file.expanduser().exists():
        raise UserError(f"{file} does not exist; write it with: wingbar embed WHAT IMAGES -o {file}")


def _check_queries(asked: Search) -> None:
    ways = [bool(asked.query), bool(asked.row), bool(asked.path), asked.duplicates is not None]
    if sum(ways) != 1:
        raise UserError(
            f"search got {sum(ways) or 'none'} of image files, --row, --path and --duplicates; give one of them"
        )
    for query in asked.query:
        if not Path(query).expanduser().exists():
            raise UserError(f"the query {query} does not exist; give an image file or a folder of images")
    if asked.ann and asked.duplicates is not None:
        raise UserError("duplicates are found exactly; leave out --ann")
