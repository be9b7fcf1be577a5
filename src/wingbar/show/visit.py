"""A visit to runs and encoders: who is shown, on which images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from wingbar.config.settings import Config
from wingbar.data.lookalike import Lookalike
from wingbar.evaluate.candidates import Candidate
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.splits import Side, Split, open_split, open_splits
from wingbar.evaluate.subject import Setting, Subject, beginnings
from wingbar.train.images import find_source


@dataclass(frozen=True)
class Visit:
    """Encoders in the order they were given, and the images they are shown on, opened when somebody looks at them."""

    candidates: Sequence[Candidate]
    config: Config  # its data set
    setting: Setting
    wanted: Side | None = None  # test if not given, train where nobody knows labels
    opened: tuple[Split, Split] | None = None  # train and test, where somebody has opened them before

    @cached_property
    def named(self) -> dict[str, Subject]:
        """The encoders on these images, by what they are called in pictures."""
        names = short_names([candidate.name for candidate in self.candidates])
        subjects = (Subject(candidate, *self._splits, self.setting) for candidate in self.candidates)
        return dict(zip(names, subjects, strict=True))

    @cached_property
    def beginnings(self) -> dict[str, Subject]:
        """What the runs among them began with, likewise: each initialisation once."""
        return {subject.name: subject for subject in beginnings(self.named.values())}

    @property
    def everyone(self) -> dict[str, Subject]:
        """Before and after: the beginnings, then the encoders themselves."""
        return self.beginnings | self.named

    @property
    def split(self) -> Split:
        """The images that are shown, labelled or not."""
        return self._splits[1]

    @cached_property
    def side(self) -> Side:
        """Which images they are."""
        source = find_source(self.config)
        labelled = isinstance(source, Lookalike) or source.labels is not None
        return self.wanted or ("test" if labelled else "train")

    @cached_property
    def _splits(self) -> tuple[Split, Split]:
        """What statistics are calibrated on, and what is shown."""
        if self.opened:
            return self.opened
        device, quiet = self.setting.device, self.setting.quiet
        if self.side == "test":
            return open_splits(self.config, device, quiet=quiet)
        train = open_split(self.config, find_source(self.config), device, quiet=quiet)
        return train, train

    def choose(self, count: int) -> Int[Tensor, " chosen"]:
        """Rows of at most so many images, of as many classes as possible."""
        return spread_over_classes(self.split.labels, count, seed=self.setting.seed)

    def said(self, count: int) -> str:
        """Which images a picture shows, for its caption."""
        whose = "training" if self.side == "train" else "test"
        return f"{count} of {len(self.split.labels):,} {whose} images"


def as_evaluated(asked: object) -> Evaluate:
    """How encoders are looked at, in the words of `wingbar evaluate`; what the options do not say is as it has it."""
    shared = ("what", "protocols", "encoder", "weights", "bn", "view", "data", "seed", "device", "quiet")
    return Evaluate(**{name: getattr(asked, name) for name in shared if hasattr(asked, name)})


def spread_over_classes(labels: Int[Tensor, " n"], count: int, *, seed: int = 0) -> Int[Tensor, " chosen"]:
    """At most `count` rows in a random order, one of every class before a second of any; sorted by class.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 2])
    >>> labels[spread_over_classes(labels, 4)].tolist()
    [0, 0, 1, 2]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    known, seen, turns = labels.tolist(), Counter[int](), list[tuple[int, int]]()
    for place, row in enumerate(order):
        turns.append((seen[known[row]], place))
        seen[known[row]] += 1
    chosen = [order[place] for _, place in sorted(turns)[:count]]
    return torch.tensor(sorted(chosen, key=lambda row: (known[row], row)), dtype=torch.int64)


def short_names(names: Sequence[str]) -> list[str]:
    """Paths by their last part where that tells them apart.

    >>> short_names(["runs/a", "runs/b"]), short_names(["x/a", "y/a"])
    (['a', 'b'], ['x/a', 'y/a'])
    """
    last = [Path(name).name or name for name in names]
    return last if len(set(last)) == len(set(names)) else list(names)


def stem_of(picture: str, name: str, among: Collection[str]) -> str:
    """What the file of an encoder's picture is called, without its ending: after the encoder, too, if it is not alone.

    >>> stem_of("map", "a b", ["a b"]), stem_of("map", "runs/a b", ["runs/a b", "runs/c"])
    ('map', 'map-runs-a-b')
    """
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return f"{picture}-{plain}" if len(among) > 1 else picture
