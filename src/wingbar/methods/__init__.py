"""The methods, one page each. Every one satisfies `wingbar.types.Method`; wrappers take a Method and are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wingbar.methods.moco import MoCo
from wingbar.methods.rebuild import Rebuild
from wingbar.methods.simsiam import SimSiam
from wingbar.methods.synth import SynthPairs

__all__ = ["METHODS", "MoCo", "Rebuild", "SimSiam", "SynthPairs"]

METHODS: dict[str, Callable[..., Any]] = {"moco": MoCo, "simsiam": SimSiam}
