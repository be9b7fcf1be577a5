"""Configs as files: JSON that a person can read, and that earlier versions wrote under other names."""

from __future__ import annotations

import json
from pathlib import Path

from wingbar.config.oldnames import todays_tree
from wingbar.config.settings import CHOICES, Config, changed, flat, named, tree
from wingbar.errors import UserError


def to_json(config: Config) -> str:
    """The config as readable text."""
    return json.dumps(tree(config), indent=2, ensure_ascii=False)


def read_config(path: Path) -> Config:
    """The config in a file, such as the config.json of a run; what is wrong with it is said with its name."""
    if not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'missing'}; a config is the config.json of a run")
    try:
        return from_json(path.read_text(encoding="utf-8", errors="replace"))
    except UserError as error:
        raise UserError(f"{path} is no config of wingbar: {error}") from error


def from_json(text: str) -> Config:
    """The config that `to_json` wrote, in this version or an earlier one; whatever else it is, is refused."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, brackets without end
        raise UserError(f"this is no JSON ({error})") from error
    for name, part in [("all of it", parts), *(parts.items() if isinstance(parts, dict) else ())]:
        if not isinstance(part, dict) and name != "wrappers":
            raise UserError(f"{name} is a {type(part).__name__}, but settings stand in braces, under their names")
    today = todays_tree(parts)
    settings = dict(flat(today))
    config = changed(Config(), {name: settings[name] for name in CHOICES if name in settings})
    unknown = sorted((settings.keys() - named(config).keys()) | (today.keys() - tree(config).keys()))
    if unknown:
        raise UserError(f"it has a setting that this version does not know: {unknown[0]}")
    return changed(config, settings)
