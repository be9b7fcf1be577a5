"""The command line's words: one per thing, whichever command takes it; a word of earlier days is answered with today's.

`--out`, `--device` and `--seed` belong to a command as a whole. Any other setting of a run is called as in its
config.json, in every command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import tyro

from wingbar.errors import UserError

Options = TypeVar("Options")

WHOLE = tyro.conf.arg(prefix_name=False)  # of the whole command: has no prefix, wherever it stands
OUT = tyro.conf.arg(prefix_name=False, aliases=["-o"])
OF_THE_WHOLE = {"run.out": "out", "run.device": "device", "run.seed": "seed"}  # the settings that belong to the whole

_ENCODER = {"encoder": "encoder.name", "weights": "encoder.weights"}
_DATA = {"name": "data.name", "root": "data.root", "size": "data.size", "workers": "data.workers"}
_OLD: dict[str, Mapping[str, str]] = {
    "try": OF_THE_WHOLE | {"epochs": "run.epochs", "images": "data.images", "classes": "data.classes"},
    "train": OF_THE_WHOLE | {"epochs": "run.epochs", "batch": "data.batch", "size": "data.size"},
    "evaluate": OF_THE_WHOLE | _ENCODER | _DATA,
    "embed": {"run.out": "out", "run.device": "device", **_ENCODER, "name": "data.name", "size": "data.size"},
    "show": OF_THE_WHOLE | _ENCODER | _DATA,
    "report": OF_THE_WHOLE | _DATA | {"points": "map.points", "how": "map.how"},
    "reproduce": OF_THE_WHOLE | _ENCODER | {"epochs": "run.epochs", "probe-epochs": "paper.epochs", "seeds": "seed"},
    "bench step": {"encoder": "encoder.name", "size": "data.size", "batch": "data.batch", "run.device": "device"},
    "bench data": {"images": "files", "workers": "processes", "run.device": "device"},
    "bench train": {"encoder": "encoder.name", "run.device": "device"},
    "data check": {"name": "data.name", "workers": "data.workers", "weights": "encoder.weights"},
}


def parse(options: type[Options], command: str, arguments: Sequence[str], *, about: str = "") -> Options:
    """What a command was asked for."""
    _answer(_OLD.get(command, {}), arguments)
    return tyro.cli(options, prog=f"wingbar {command}", description=about or None, args=arguments)


def _answer(old: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Refuse words of earlier days, all at once."""
    names = (word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--"))
    answers = [f"{name} is called --{old[name[2:]]} now" for name in dict.fromkeys(names) if name[2:] in old]
    if answers:
        raise UserError("; ".join(answers))
