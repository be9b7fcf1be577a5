"""`wingbar export`: an embedder in, a file or a folder out that needs no wingbar."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.data.entry import readable_size
from wingbar.terminal import say
from wingbar.use.export.options import Export, resolve

__all__ = ["export"]


def export(arguments: Sequence[str]) -> None:
    """write an encoder for other software: wingbar export runs/a --to onnx|program|timm|hub [-o PATH]"""
    asked = parse(Export, "export", arguments)
    resolve(asked)
    from wingbar.use.export.writing import write_export

    done = write_export(asked)
    for path in done.files:
        say(f"{path}, {readable_size(path.stat().st_size)}")
    for sentence in done.sentences:
        say(sentence)
