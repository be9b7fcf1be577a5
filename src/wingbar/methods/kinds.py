"""The two kinds of methods, with what each does where its own file says nothing else; and what a wrapper is around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from jaxtyping import Float
from torch import Tensor, nn

from wingbar.methods.state import Average
from wingbar.models.encoder import Encoder
from wingbar.types import Batch, Comparing, Encodes, Method, Network, ParamGroup


class Base(Protocol):
    """A method of its own: evaluated by its trunk's pooled vector, without a memory, all of it on one schedule."""

    encoder: Encoder

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Its parts by name, as every module has them."""

    def after_step(self, carries: Sequence[Any]) -> None:
        """Nothing to remember."""
        return

    def probe(self, batch: Batch) -> Float[Tensor, "batch 3 h w"]:
        """The view that criteria compare a plain image with: the last large one, so that a third is fresh (A24)."""
        return batch.second

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """The pooled feature."""
        return self.encoder(image).vector

    def param_groups(self) -> list[ParamGroup]:
        """Its parts, but for teachers."""
        return groups_of(**{name: part for name, part in self.named_children() if not isinstance(part, Average)})


class Wrapper(Protocol):
    """A method around another, its `base`: what it does not do in its own way, the base does."""

    base: Method

    @property
    def encoder(self) -> Encodes:
        """The base method's encoder."""
        return self.base.encoder

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """The base method's projection."""
        return self.base.project(feature)

    def after_step(self, carries: Sequence[Any]) -> None:
        """The base method's state; there is no other."""
        self.base.after_step(carries)

    def probe(self, batch: Batch) -> Float[Tensor, "batch 3 h w"]:
        """The view that the base method names."""
        return self.base.probe(batch)

    def embed(self, image: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """The base method's feature."""
        return self.base.embed(image)

    def param_groups(self) -> list[ParamGroup]:
        """The base method's groups; nothing is added."""
        return self.base.param_groups()


def groups_of(**parts: Network) -> list[ParamGroup]:
    """A group for every part that has parameters, under its name, on the method's own schedule."""
    return [ParamGroup(name, own) for name, part in parts.items() if (own := list(part.parameters()))]


# --- what a wrapper is around ----------------------------------------------------------------------------------------


def innermost(method: Method) -> Any:
    """The method without what is around it: it has the teacher, or the loss of its own."""
    base: Method | None = getattr(method, "base", None)
    return method if base is None else innermost(base)


def comparing(method: Method) -> Comparing:
    """The same, where it has a loss between two embeddings: the settings were checked for that."""
    return cast("Comparing", innermost(method))


OWN_NAMES = ("rebuild", "pair", "psnr", "noise_ratio", "twin_change")
Value = TypeVar("Value")


def beneath(base: Mapping[str, Value]) -> dict[str, Value]:
    """What a wrapped method reports, renamed where it is itself a wrapper: its `pair` becomes `base/pair`.

    >>> beneath({"base": 1, "pair": 2, "base/pair": 3})
    {'base': 1, 'base/pair': 2, 'base/base/pair': 3}
    """
    wrappers = {name for name in base if name.split("/")[-1] in OWN_NAMES or name.startswith("perturbed/")}
    return {f"base/{name}" if name in wrappers else name: value for name, value in base.items()}
