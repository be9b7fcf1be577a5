"""What everything else asks of a method or of a wrapper: one `Entry`, at the top of the method's own file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from wingbar.config.sections import Optim

if TYPE_CHECKING:
    from wingbar.config.settings import Config
    from wingbar.types import Encodes, Method

TINY = 1e-30  # as a limit: above 0
Number = int | float
Own = TypeVar("Own")  # a method's own settings
Limits = Mapping[str, tuple[Number, Number]]


class Context(NamedTuple):
    """What a method may know of the run it is built for."""

    steps: int  # optimiser steps of the whole training
    batch: int  # images per step
    size: int  # side of the images
    weights: str = "random"  # where the encoder starts
    epochs: int = 1  # of the whole training
    view_sizes: tuple[int, ...] = ()  # sides of its views, where they are ours
    images: int = 1  # that are trained on


def fixed(passes: Number) -> Callable[[object], Number]:
    """The same cost, whatever the settings.

    >>> fixed(4)(None)
    4
    """
    return lambda settings: passes


_nothing = fixed(0)


def _no_variant(settings: object) -> str:
    return ""


def _no_problems(settings: object, config: Config) -> Iterable[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[Own]):
    """A method, or a wrapper around one. It stands above the network in its file, and is read without torch.

    `build` names a function that stands below it: `build(encoder, settings, context)` makes the method,
    `build(base, settings, context)` of a wrapper the method around another. A wrapper may change what is seen, too, or
    nothing else: `sees(augment, settings, sight)` makes its views (`wingbar.data.batches.Sight`).
    """

    title: str  # in tables and figures
    variant: Callable[[Own], str] = _no_variant  # what stands behind the title for some settings
    settings: type[Own]  # a frozen dataclass whose texts are the help: --method.… or, of a wrapper, --<its name>.…
    passes: Callable[[Own], Number]  # of the encoder, per image and step, a backward counting two; a wrapper: it adds
    optim: Optim = Optim()  # noqa: RUF009  frozen; what its authors chose
    views: str = "moco"  # of `wingbar.data.views`, or a function of the method's own file: data settings → Views
    build: str = "build"  # "": a wrapper that changes views alone
    wraps: bool = False
    sees: str = ""  # the function, if any, by which a wrapper changes the method's views
    saliency: bool = False  # it needs a map of each image's foreground; its setting `saliency` says from where
    several: bool = False  # it normalises over the images of a pass, which must be two or more
    looks_at_images: bool = False  # at plain ones, beside their views
    offers: frozenset[str] = frozenset()  # to what is around it: "teacher", "comparison", "target"
    limits: Limits = field(default_factory=dict)  # of its numbers, inclusive
    endless: frozenset[str] = frozenset()  # of these, the ones that may be infinite
    problems: Callable[[Own, Config], Iterable[str]] = _no_problems  # sentences about settings that do not go together
    remedies: Mapping[str, str] = field(default_factory=dict)  # loss → what to do when it is NaN
    numerics: int = 1  # raised when the same settings give other numbers than before
    before: str = ""  # the function, if any, that says what is to be trained before training
    before_passes: Callable[[Own], Number] = _nothing  # of that, per image
    before_depends: tuple[str, ...] = ()  # its own settings that decide how that ends
    small: Mapping[str, Any] = field(default_factory=dict)  # its settings for trying it in seconds
    decodes: bool = False  # a wrapper that is or holds the paper's pairs: rebuilt images and twins can be shown
    as_pairs: Callable[[Own], Mapping[str, Any]] | None = None  # settings of the paper's pairs that show what it does

    def around(self, inner: Encodes | Method, settings: Own, context: Context) -> Any:
        """The method made of an encoder, or the wrapper around a method; the method itself where only views change."""
        return self.function(self.build)(inner, settings, context) if self.build else inner

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the method's own file."""
        return getattr(sys.modules[self.settings.__module__], name)
