"""The lowest versions that pyproject.toml takes, as constraints for pip; for `make test-lowest`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def lowest(project: dict) -> list[str]:
    """One line per library that has a lower bound; of several bounds the highest."""
    extras = (line for lines in project["optional-dependencies"].values() for line in lines)
    bounds = (re.fullmatch(r"([\w-]+)>=([\d.]+)", line) for line in (*project["dependencies"], *extras))
    found: dict[str, str] = {}
    for name, least in (bound.groups() for bound in bounds if bound):
        found[name] = max(found.get(name, "0"), least, key=lambda words: [int(number) for number in words.split(".")])
    return [f"{name}=={least}" for name, least in sorted(found.items())]


if __name__ == "__main__":
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    print("\n".join(lowest(tomllib.loads(text)["project"])))
