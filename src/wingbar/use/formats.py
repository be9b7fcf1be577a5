"""Embeddings files by their ending: Parquet, NPZ, or a folder with a memory map. The same rows are the same bytes.

None is ever read or written as a whole: vectors go by blocks of rows.
"""

from __future__ import annotations

import csv
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from wingbar.data.contents import digest
from wingbar.errors import UserError, on_one_line
from wingbar.files import atomic, plain, refuse_bomb, table_text, write_text
from wingbar.use.embeddings import DTYPES, Embeddings, IndexRow, from_text, to_text
from wingbar.use.exact import BLOCK

KEY, VECTORS, COLUMNS = "wingbar", "vector", ("path", "class", "hash")
ABOUT = "about.json"
OURS = re.compile(r"(rows|vector|projection_[xy]|neighbor_(ids|distances))\.[0-9a-f]{12}\.(csv|npy)|\..+\.partial")
PLACES, NEIGHBOURS = ("projection_x", "projection_y"), ("neighbor_ids", "neighbor_distances")


class FileFormat(NamedTuple):
    """How one ending is read and written."""

    read: Callable[[Path], Embeddings]
    write: Callable[[Path, Embeddings], None]


def open_embeddings(path: Path) -> Embeddings:
    """What a file holds; its vectors stay on the disk."""
    file = path.expanduser()
    try:
        return _consistent(FORMATS[file.suffix].read(file))
    except (UserError, ImportError):
        raise
    except Exception as error:  # zip, CSV, NumPy and Arrow raise anything at all on a damaged file
        why = on_one_line(error)
        raise UserError(f"{path} is no embeddings file of wingbar, or damaged ({why}); choose another") from error


def _consistent(content: Embeddings) -> Embeddings:
    """The same, if it has a vector for every row, and of nothing but numbers."""
    wanted = len(content.rows), content.about.dim
    if tuple(content.vectors.shape) != wanted:
        raise ValueError(f"vectors are {tuple(content.vectors.shape)}, rows and dimensions are {wanted}")
    if not all(isinstance(word, str) for row in content.rows for word in row):
        raise ValueError("a path, a class or a hash is no text")
    for name, values in content.extras.items():
        if len(values) != wanted[0] or values.dtype.kind not in "fi":
            raise ValueError(f"{name} is {values.shape} of {values.dtype}")
    return content


def write_embeddings(path: Path, content: Embeddings) -> None:
    """A whole file, or the one that was there before."""
    FORMATS[path.suffix].write(path, content)


def _by_block(content: Embeddings) -> Iterator[tuple[slice, Float[np.ndarray, "m dim"]]]:
    kind = DTYPES[content.about.dtype]
    for start in range(0, len(content.rows), BLOCK):
        place = slice(start, min(start + BLOCK, len(content.rows)))
        yield place, np.ascontiguousarray(content.vectors[place], dtype=kind)


# --- Parquet ---------------------------------------------------------------------------------------------------------


class ParquetVectors:
    """The column of vectors, by groups of rows, of which the last one read is kept."""

    def __init__(self, file: Any, dim: int) -> None:
        self.file, self.shape = file, (file.metadata.num_rows, dim)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        self.ends = np.cumsum([0, *sizes])
        self.kept: tuple[int, np.ndarray] | None = None

    def __getitem__(self, rows: slice | Int[np.ndarray, " m"]) -> Float[np.ndarray, "m dim"]:
        wanted = np.arange(*rows.indices(self.shape[0])) if isinstance(rows, slice) else rows
        groups = np.searchsorted(self.ends, wanted, side="right") - 1
        found = np.empty((len(wanted), self.shape[1]), dtype=self._group(0).dtype if self.shape[0] else np.float16)
        for group in np.unique(groups):
            mine = groups == group
            found[mine] = self._group(int(group))[wanted[mine] - self.ends[group]]
        return found

    def _group(self, group: int) -> Float[np.ndarray, "m dim"]:
        if self.kept is None or self.kept[0] != group:
            try:
                column = self.file.read_row_group(group, columns=[VECTORS]).column(0).combine_chunks()
                size = self.file.metadata.row_group(group).num_rows
                rows = column.flatten().to_numpy(zero_copy_only=False).reshape(size, self.shape[1])
            except Exception as error:  # as in `open_embeddings`: vectors are read when they are asked for
                why = on_one_line(error)
                raise UserError(f"row group {group} of the embeddings file is damaged ({why}); embed anew") from error
            _check_kind(rows.dtype)
            self.kept = group, rows
        return self.kept[1]


def _read_parquet(path: Path) -> Embeddings:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    about = from_text((file.schema_arrow.metadata or {}).get(KEY.encode(), b""), path)
    others = [name for name in file.schema_arrow.names if name != VECTORS]
    table = file.read(columns=others)
    path_, label, content = (table.column(name).to_pylist() for name in COLUMNS)
    rows = [IndexRow(*found) for found in zip(path_, [one or "" for one in label], content, strict=True)]
    extras = {name: table.column(name).to_numpy() for name in PLACES if name in others}
    if "neighbors" in others:
        parts = table.column("neighbors").combine_chunks()
        for name, part in zip(NEIGHBOURS, ("ids", "distances"), strict=True):
            extras[name] = (
                parts.field(part).values.to_numpy().reshape(len(rows), min(about.neighbours or 0, len(rows) - 1))
            )
    return Embeddings(about, rows, ParquetVectors(file, about.dim), extras)


def _write_parquet(path: Path, content: Embeddings) -> None:
    """One group of rows per block. Vectors do not shrink by compression, words do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.float16() if content.about.dtype == "fp16" else pa.float32()
    types: dict[str, Any] = {**dict.fromkeys(COLUMNS, pa.string()), VECTORS: pa.list_(kind, content.about.dim)}
    types |= {name: pa.float32() for name in PLACES if name in content.extras}
    if NEIGHBOURS[0] in content.extras:
        types["neighbors"] = pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())})
    schema = pa.schema(types, metadata={KEY: to_text(content.about)})
    how: dict[str, Any] = {"compression": dict.fromkeys(COLUMNS, "zstd"), "write_statistics": list(COLUMNS)}
    with atomic(path) as partial, pq.ParquetWriter(partial, schema, use_dictionary=["class"], **how) as writer:
        for place, vectors in _by_block(content):
            writer.write_table(pa.table(_arrow(pa, content, place, vectors), schema=schema), row_group_size=BLOCK)


def _arrow(pa: Any, content: Embeddings, place: slice, vectors: Float[np.ndarray, "m dim"]) -> list[Any]:
    """The columns of a block, in the schema's order."""
    rows = content.rows[place]
    columns = [
        pa.array([row.path for row in rows]),
        pa.array([row.label or None for row in rows], pa.string()),
        pa.array([row.content for row in rows]),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
    ]
    columns += [pa.array(content.extras[name][place]) for name in PLACES if name in content.extras]
    if NEIGHBOURS[0] in content.extras:
        lists = []
        for name in NEIGHBOURS:
            values = content.extras[name][place]
            ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
            lists.append(pa.ListArray.from_arrays(ends, pa.array(values.ravel())))
        columns.append(pa.StructArray.from_arrays(lists, ["ids", "distances"]))
    return columns


# --- NPZ -------------------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> Embeddings:
    refuse_bomb(path)
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # it closes no damaged file itself
        about = from_text(str(file[KEY]) if KEY in file else "", path)
        columns = [file[name].tolist() for name in COLUMNS]
        extras = {name: file[name] for name in (*PLACES, *NEIGHBOURS) if name in file}
    return Embeddings(about, [IndexRow(*row) for row in zip(*columns, strict=True)], _mapped(path, VECTORS), extras)


def _mapped(path: Path, name: str) -> Float[np.ndarray, "n dim"]:
    """An array of an NPZ file that is not compressed, mapped into memory."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        member = archive.getinfo(f"{name}.npy")
        file.seek(member.header_offset + 26)  # of the archive's own head: how long the name and what follows it are
        start = member.header_offset + 30 + sum(int.from_bytes(file.read(2), "little") for _ in range(2))
        file.seek(start)
        np.lib.format.read_magic(file)
        shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
        _check_kind(kind, by_column=by_column)
        if math.prod(shape) * kind.itemsize != start + member.file_size - file.tell():
            raise ValueError(f"{name} is cut off")
        return np.memmap(path, dtype=kind, mode="r", offset=file.tell(), shape=shape) if shape[0] else np.empty(shape)


def _check_kind(kind: np.dtype[Any], *, by_column: bool = False) -> None:
    """Numbers as we write them and nothing else: mapped, Python's objects would be at any address that a file says."""
    if kind not in DTYPES.values() or by_column:
        raise ValueError(f"its vectors are {kind}")


def _write_npz(path: Path, content: Embeddings) -> None:
    columns = zip(*content.rows, strict=True) if content.rows else ([], [], [])
    words = {name: np.array(column, dtype=np.str_) for name, column in zip(COLUMNS, columns, strict=True)}
    with atomic(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, values in {KEY: np.array(to_text(content.about)), **words, **content.extras}.items():
            with archive.open(_dateless(name), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
        with archive.open(_dateless(VECTORS), "w", force_zip64=True) as file:
            _write_vectors(file, content)


def _dateless(name: str) -> zipfile.ZipInfo:
    """A member of an archive that has no date, so that the same content has the same bytes."""
    return zipfile.ZipInfo(f"{name}.npy")


def _write_vectors(file: IO[bytes], content: Embeddings) -> None:
    """As a .npy file has them."""
    kind, shape = DTYPES[content.about.dtype], (len(content.rows), content.about.dim)
    np.lib.format.write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})
    for _, vectors in _by_block(content):
        file.write(vectors.tobytes())


# --- a folder with a memory map --------------------------------------------------------------------------------------

# about.json names the other files, which are called after what is in them: new ones are written beside old ones, and
# whoever reads has all of the old or all of the new.


def _read_map(path: Path) -> Embeddings:
    said = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    tag, about = said.pop("files"), from_text(json.dumps(said), path)
    if not OURS.fullmatch(f"rows.{tag}.csv"):  # or it could name a file anywhere
        raise ValueError(f"files are called {tag}")
    with (path / f"rows.{tag}.csv").open(encoding="utf-8", newline="") as file:
        _, *lines = csv.reader(file)
    extras = {
        name: np.load(path / f"{name}.{tag}.npy", mmap_mode="r")
        for name in (*PLACES, *NEIGHBOURS)
        if (path / f"{name}.{tag}.npy").exists()
    }
    vectors = np.load(path / f"{VECTORS}.{tag}.npy", mmap_mode="r")
    _check_kind(vectors.dtype)
    rows = [IndexRow(*map(plain, line)) for line in lines]
    return Embeddings(about, rows, vectors, extras)


def _write_map(path: Path, content: Embeddings) -> None:
    text, said = table_text(COLUMNS, content.rows), json.loads(to_text(content.about))
    tag = digest(json.dumps(said).encode(), text.encode()).hex()[:12]
    write_text(path / f"rows.{tag}.csv", text)
    for name, values in content.extras.items():
        with atomic(path / f"{name}.{tag}.npy") as partial, partial.open("wb") as file:
            np.lib.format.write_array(file, values, allow_pickle=False)
    with atomic(path / f"{VECTORS}.{tag}.npy") as partial, partial.open("wb") as file:
        _write_vectors(file, content)
    write_text(path / ABOUT, json.dumps({"files": tag, **said}, indent=2, ensure_ascii=False) + "\n")
    for other in path.iterdir():
        if OURS.fullmatch(other.name) and other.name.partition(".")[2].partition(".")[0] != tag:
            other.unlink()


# --- which -----------------------------------------------------------------------------------------------------------

FORMATS = {
    ".parquet": FileFormat(_read_parquet, _write_parquet),
    ".npz": FileFormat(_read_npz, _write_npz),
    ".map": FileFormat(_read_map, _write_map),
}


def is_there(path: Path) -> bool:
    """Whether there is a file, or a folder that is not ours to fill, which reading will refuse."""
    if path.suffix != ".map" or not path.is_dir():
        return path.exists()
    return any(not OURS.fullmatch(other.name) for other in path.iterdir())  # killed, the first writer left only ours
