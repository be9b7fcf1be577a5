"""What is in a tar archive: its images, where they begin, and what the files beside them say of their classes.

Headers alone are read, and labels. No name in an archive is ever opened or made: whoever asks for one compares it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from wingbar.data.walking import is_image_name

BLOCK = 512  # bytes of a header; files begin at multiples of it
MOST_BYTES = 1 << 28  # of an image: it is read as a whole
MOST_SAID = 1 << 20  # of a long name, a label
Read = Callable[[int, int], bytes]  # (start, size)


class Shard(NamedTuple):
    """The images in an archive, by name; row i is the same image in every field."""

    names: list[str]  # sorted, with forward slashes
    starts: list[int]
    sizes: list[int]
    labels: list[str]  # what a .cls or .json file beside an image says; empty: there is none
    odd: list[str]  # members that are left out: links, names that lead elsewhere, images that are too large


def read_archive(read: Read, size: int) -> Shard:
    """One pass over the headers; of files of the same name the first one counts. ValueError if it is damaged."""
    images, labels, odd = dict[str, _Member](), dict[str, str](), list[str]()
    for member in _members(read, size):
        name = _tidy(member.name)
        if name is None or not member.plain or (is_image_name(name) and member.size > MOST_BYTES):
            odd.append(member.name)
        elif name.startswith(".") or "/." in name:
            continue
        elif is_image_name(name):
            images.setdefault(name, member)
        elif name.endswith((".cls", ".json")) and member.size <= MOST_SAID:
            labels.setdefault(_key(name), _label(name, read(member.start, member.size)))
    names = sorted(_samples(images))
    found = [images[name] for name in names]
    said = [labels.get(_key(name), "") for name in names]
    return Shard(names, [one.start for one in found], [one.size for one in found], said, odd)


def _tidy(name: str) -> str | None:
    """As a path below the archive; nothing if it would lead out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or not parts else "/".join(parts)


def _key(name: str) -> str:
    """What the files of a sample share: all before the first dot of the last word, as WebDataset has it."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _samples(names: Mapping[str, object]) -> Iterator[str]:
    """One image per key; but names with dots of their own, as 1.left.jpg or Black.Footed.jpg, count where all have."""
    plain = set[str]()
    for name in names:
        if name.count(".", name.rfind("/") + 1) == 1 and _key(name) not in plain:
            plain.add(_key(name))
            yield name
    yield from (name for name in names if _key(name) not in plain)


def _label(name: str, content: bytes) -> str:
    """What a .cls file says, or `cls`, `label` or `class` in JSON."""
    if name.endswith(".cls"):
        return content.decode(errors="backslashreplace").strip()
    with suppress(ValueError, RecursionError):
        said = json.loads(content)
        if isinstance(said, dict):
            return next((str(said[word]) for word in ("cls", "label", "class") if said.get(word) is not None), "")
    return ""


# --- headers ---------------------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """A file in an archive as its header has it."""

    name: str
    start: int
    size: int
    plain: bool  # a file, and no link, device or file with holes


def _members(read: Read, size: int) -> Iterator[_Member]:
    """Every member but folders; ValueError where it is no archive or not a whole one."""
    place, said = 0, dict[str, str]()
    while any(head := read(place, BLOCK)):
        if len(head) < BLOCK or sum(head) - sum(head[148:156]) + 256 != _number(head[148:156]):
            what = "compressed; unpack it with gunzip" if head.startswith(b"\x1f\x8b") and not place else "damaged"
            raise ValueError(f"it is no tar archive at byte {place:,}: {what}")
        kind, length = head[156:157], int(said.get("size") or _number(head[124:136]))
        place += BLOCK
        if length > size - place or (kind in b"xgLK" and length > MOST_SAID):
            raise ValueError(f"it is cut off: at byte {place:,} it promises {length:,} more")
        if kind in b"xL":
            said |= _pax(read(place, length)) if kind == b"x" else {"path": _text(read(place, length))}
        elif kind not in b"gK":
            if kind != b"5":
                holes = any(word.startswith("GNU.sparse") for word in said)
                yield _Member(said.get("path") or _name(head), place, length, kind in b"0\0" and not holes)
            said = {}
        place += -(-length // BLOCK) * BLOCK
    if place >= size:
        raise ValueError("it is cut off: its end mark is missing")


def _number(field: bytes) -> int:
    """In octal digits or, if the first bit says so, in binary."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
    return int(field.strip(b"\0 ") or b"0", 8)


def _name(head: bytes) -> str:
    """A name in its header, behind its prefix in POSIX's."""
    prefix = _text(head[345:500]) if head[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(head[:100])}" if prefix else _text(head[:100])


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0", 1)[0])


def _pax(content: bytes) -> dict[str, str]:
    """Records such as `19 path=a/long/name`, each with its own length before it."""
    said, place = dict[str, str](), 0
    while place < len(content):
        length = int(content[place:].split(b" ", 1)[0])
        word, _, value = content[place : place + length].partition(b" ")[2].rstrip(b"\n").partition(b"=")
        said[os.fsdecode(word)] = os.fsdecode(value)
        place += max(length, 1)
    return said
