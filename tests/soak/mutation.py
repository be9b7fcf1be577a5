"""Files that are almost right: bytes that are changed blindly, and JSON that is changed knowingly."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from copy import deepcopy
from typing import Any

import numpy as np

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, float("nan"), "", "x" * 5000, "\0", "../../x", "=1+1", "\x1b[2J", "\ud800"),
    *([], {}, [[]], {"a": {"b": []}}, "nan", "1", [None] * 9),
)


def mutated(data: bytes, rng: np.random.Generator, other: bytes = b"") -> bytes:
    """The same bytes after one to four accidents; with `other`, part of that may have got into it."""
    for _ in range(int(rng.integers(1, 5))):
        accident = ACCIDENTS[rng.integers(len(ACCIDENTS))]
        data = accident(data, rng, other or data)
    return data


def _place(data: bytes, rng: np.random.Generator) -> int:
    """Heads matter most: half of all accidents happen in the first hundred bytes."""
    return int(rng.integers(max(1, min(100, len(data)) if rng.random() < 0.5 else len(data))))


def _cut(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return data[: _place(data, rng)]


def _flip(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 9)) if data else 0):
        found[_place(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(found)


def _edge(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """A number becomes one of those at which programs stumble."""
    kind = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")[rng.integers(7)]
    width = struct.calcsize(kind)
    word = struct.pack(kind, EDGES[rng.integers(len(EDGES))] & (256**width - 1))
    at = _place(data, rng)
    return data[:at] + word + data[at + width :]


def _remove(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + int(rng.integers(1, 200)) :]


def _insert(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    at, start = _place(data, rng), _place(other, rng)
    return data[:at] + other[start : start + int(rng.integers(1, 200))] + data[at:]


def _noise(data: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    at, count = _place(data, rng), int(rng.integers(1, 100))
    return data[:at] + rng.bytes(count) + data[at + count :]


ACCIDENTS = (_cut, _flip, _flip, _edge, _edge, _edge, _remove, _insert, _noise)


def mutated_json(data: bytes, rng: np.random.Generator) -> bytes:
    """The same JSON with some values, at any depth, that are strange, gone or renamed."""
    tree = json.loads(data)
    for _ in range(int(rng.integers(1, 4))):
        _change(tree, rng)
    return json.dumps(tree).encode()


def mutated_lines(data: bytes, rng: np.random.Generator) -> bytes:
    """The same record, in which a line is another one."""
    lines = data.splitlines(keepends=True)
    place = int(rng.integers(len(lines)))
    lines[place] = mutated_json(lines[place], rng) + b"\n"
    return b"".join(lines)


def mutated_tar(data: bytes, rng: np.random.Generator) -> bytes:
    """The same archive with a strange header, whose checksum is right."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        places = [member.offset for member in archive]
    at = places[rng.integers(len(places))]
    head = bytearray(mutated(data[at : at + 512], rng)[:512].ljust(512, b"\0"))
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return data[:at] + bytes(head) + data[at + 512 :]


def _change(tree: Any, rng: np.random.Generator) -> None:
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if not keys:
        return
    key = keys[rng.integers(len(keys))]
    if isinstance(tree[key], dict | list) and rng.random() < 0.7:
        _change(tree[key], rng)
    elif rng.random() < 0.2:
        del tree[key]
    elif isinstance(tree, dict) and rng.random() < 0.1:
        tree[f"{key}x"] = tree.pop(key)
    else:
        tree[key] = deepcopy(STRANGE[rng.integers(len(STRANGE))])
