"""Names that settings had before: in config.json files, in the keys of recorded results, in people's fingers.

Until 0.1 every setting of every method stood in four sections, `method`, `synth`, `decoder` and `readings`, whichever
method was used, and `synth.on` said whether pairs were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECTIONS = {"synth.": "pairs.", "decoder.": "pairs.decoder.", "readings.": "pairs.readings."}
QUEUED = "enqueue"  # of MoCo alone
SHARED = ("denominator", "normalise")  # of MoCo and of pairs, which had one setting for both


def today(name: str) -> str:
    """What a setting is called now.

    >>> today("synth.nu"), today("readings.enqueue"), today("synth.on"), today("run.epochs")
    ('pairs.nu', 'method.enqueue', 'wrappers', 'run.epochs')
    """
    if name == "synth.on":
        return "wrappers"
    if name == f"readings.{QUEUED}":
        return f"method.{QUEUED}"
    old = next((section for section in SECTIONS if name.startswith(section)), None)
    return name if old is None else SECTIONS[old] + name.removeprefix(old)


def todays_tree(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json under today's names; settings of methods that the run did not use are left out."""
    if "synth" not in tree:
        return tree
    sections = {name: dict(tree.get(name, {})) for name in ("method", "synth", "decoder", "readings")}
    method, synth, readings = sections["method"], sections["synth"], sections["readings"]
    queued = readings.pop(QUEUED, None)
    if method.get("name", "moco") == "moco":
        method.pop("hidden", None)
        method |= {name: readings[name] for name in SHARED if name in readings}
        method |= {} if queued is None else {QUEUED: queued}
    else:
        sections["method"] = {name: method[name] for name in ("name", "dim", "hidden") if name in method}
    if sections["method"].get("dim", 0) is None:
        del sections["method"]["dim"]  # the method's own
    rest = {name: value for name, value in tree.items() if name not in sections} | {"method": sections["method"]}
    if not synth.pop("on", True):
        return {**rest, "wrappers": []}
    return {**rest, "wrappers": ["pairs"], "pairs": {**synth, "decoder": sections["decoder"], "readings": readings}}


def recorded(telling: Mapping[str, Any], everything: Mapping[str, Any]) -> dict[str, Any]:
    """Some of a run's settings under the names by which results were recorded first: what was measured is found again.

    >>> recorded({"wrappers": (), "method.queue": 4096}, {})
    {'synth.on': False, 'method.queue': 4096}
    >>> recorded({"pairs.nu": 0.1, "pairs.decoder.lr": 0.1}, {})
    {'synth.nu': 0.1, 'decoder.lr': 0.1}
    """
    found = {_first_name(name, everything): value for name, value in telling.items()}
    alone = {"synth.on": False} if found.get("wrappers") == () else {}
    return {**alone, **{name: value for name, value in found.items() if not alone or name != "wrappers"}}


def _first_name(name: str, everything: Mapping[str, Any]) -> str:
    if name == f"method.{QUEUED}":
        return f"readings.{QUEUED}"
    last = name.rpartition(".")[2]
    both = (f"method.{last}", f"pairs.readings.{last}")
    if name in both and last in SHARED:
        values = [everything[one] for one in both if one in everything]
        return name if len(set(values)) > 1 else f"readings.{last}"
    old = next((old for old, new in reversed(SECTIONS.items()) if name.startswith(new)), None)
    return name if old is None else old + name.removeprefix(SECTIONS[old])
