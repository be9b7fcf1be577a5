"""MATLAB's files of variables, level 5 (up to MATLAB 7.2), as published label files are: numbers, text, cells, structs.

A variable is an element; elements have a kind, a length, and others inside them. Nothing is taken for longer than its
file is, so that a damaged one is a ValueError: libraries that read more kinds crash on it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HEADER = 128  # bytes: words for people, a version, the order of bytes
MATRIX, COMPRESSED = 14, 15
KINDS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
TEXTS = {1: "latin1", 2: "latin1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
CELL, STRUCT, TEXT, NUMBERS = 1, 2, 4, range(6, 16)  # kinds of a matrix
DEEPEST = 8  # a cell in a struct in a cell …
LONGEST = 2**28  # bytes of a variable that was compressed: those of Stanford Cars have a million


class Element(NamedTuple):
    """What stands behind a tag."""

    kind: int
    content: memoryview


def read_matlab(path: Path) -> dict[str, Any]:
    """Every variable by its name: numbers and cells as arrays, structs with a column per field, text as words.

    Dimensions of one are left out, so that an array with one value is that value.
    """
    content = path.read_bytes()
    try:
        if content[126:128] != b"IM" or content[124:126] != b"\x00\x01":
            raise ValueError("its header is another's")
        return dict(_variable(one, 0) for one in _elements(memoryview(content)[HEADER:]))
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path.name} is no MATLAB file that can be read: {error}") from error


def _elements(content: memoryview) -> Iterator[Element]:
    """One after the other; each begins at a multiple of eight bytes, but for those behind compressed ones."""
    while len(content):
        kind, length = np.frombuffer(_first(content, 8), "<u4").tolist()
        if small := kind >> 16:  # length and kind share four bytes, the content has the other four
            if small > 4:
                raise ValueError(f"{small} bytes cannot stand in four")
            yield Element(kind & 0xFFFF, content[4 : 4 + small])
            content = content[8:]
            continue
        yield Element(kind, _first(content[8:], length))
        content = content[8 + (length if kind == COMPRESSED else -(-length // 8) * 8) :]


def _first(content: memoryview, length: int) -> memoryview:
    if length > len(content):
        raise ValueError(f"it is cut off: {length:,} bytes are promised where {len(content):,} are left")
    return content[:length]


def _variable(element: Element, depth: int) -> tuple[str, Any]:
    """Name and value; what lies in cells and structs has no name."""
    if element.kind == COMPRESSED and not depth:
        unpacked = zlib.decompressobj().decompress(element.content, LONGEST)
        return _variable(_part(_elements(memoryview(unpacked))), depth + 1)
    if element.kind != MATRIX or depth > DEEPEST:
        raise ValueError(f"an element of kind {element.kind}, {depth} deep, is no variable")
    if not len(element.content):
        return "", np.empty(0)
    parts = _elements(element.content)
    flags, shape, name = (_part(parts) for _ in range(3))
    values = _values(int(_numbers(flags)[0]) & 0xFF, _shape(shape), parts, depth)
    return bytes(name.content).decode("latin1"), values


def _part(parts: Iterator[Element]) -> Element:
    found = next(parts, None)
    if found is None:
        raise ValueError("a variable is cut off")
    return found


def _shape(element: Element) -> list[int]:
    shape = _numbers(element).tolist()
    if not 2 <= len(shape) <= 32 or min(shape) < 0:
        raise ValueError(f"a variable has the shape {shape}")
    return shape


def _numbers(element: Element) -> np.ndarray:
    if element.kind not in KINDS or len(element.content) % np.dtype(KINDS[element.kind]).itemsize:
        raise ValueError(f"{len(element.content):,} bytes of kind {element.kind} are no numbers")
    found = np.frombuffer(element.content, KINDS[element.kind])
    if not len(found):
        raise ValueError("numbers are missing")
    return found


def _values(kind: int, shape: list[int], parts: Iterator[Element], depth: int) -> Any:
    """What a matrix holds; MATLAB counts the first dimension fastest."""
    if kind == TEXT:
        text = _part(parts)
        return bytes(text.content).decode(TEXTS.get(text.kind, "ascii"), errors="replace")
    if kind in NUMBERS:
        return _squeezed(_numbers(_part(parts)), shape) if prod(shape) else np.empty(0)
    if kind == CELL:
        return _squeezed(_objects(_variable(one, depth + 1)[1] for one in parts), shape)
    if kind != STRUCT:
        raise ValueError(f"a variable of kind {kind} is none that is read")
    width, names = int(_numbers(_part(parts))[0]), bytes(_part(parts).content)
    if not 0 < width <= 64:
        raise ValueError(f"names of fields have {width} letters")
    fields = [names[at : at + width].split(b"\0")[0].decode("latin1") for at in range(0, len(names), width)]
    found = _objects(_variable(one, depth + 1)[1] for one in parts)
    table = np.empty(len(found) // max(1, len(fields)), [(name, object) for name in fields])
    if len(table) * len(fields) != len(found):
        raise ValueError(f"{len(found):,} values do not fill {len(fields)} fields")
    for place, name in enumerate(fields):
        table[name] = found[place :: len(fields)]
    return _squeezed(table, shape)


def _objects(values: Iterator[Any]) -> np.ndarray:
    """Of any kind, one beside the other."""
    listed = list(values)
    found = np.empty(len(listed), dtype=object)
    for place, value in enumerate(listed):
        found[place] = value
    return found


def _squeezed(values: np.ndarray, shape: list[int]) -> Any:
    if prod(shape) != len(values):
        raise ValueError(f"{len(values):,} values do not fill {' × '.join(map(str, shape))}")
    found = values.reshape(shape, order="F").squeeze()
    return found if found.ndim or values.dtype.names else found.item()
