"""The contracts every part keeps: what travels between them, and what a method, criterion or decoder is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor, nn


class Pixels(NamedTuple):
    """How pixels in [0, 1] are normalised, by channel: (pixel − mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# Every image, view and decoder here works in this space; a trunk that wants another gets it at its door.
IMAGENET = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MEAN, STD = IMAGENET


@dataclass(frozen=True)
class Batch:
    """One step's images, all in ImageNet-normalised space.

    `seed` owns the batch's randomness (feature noise): a method is a pure function of weights, state and batch.
    """

    image: Float[Tensor, "batch 3 height width"]  # resized only: what the decoder must reproduce; no pixels without one
    views: tuple[Float[Tensor, "batch 3 _ _"], ...]  # a multi-crop method puts the global ones first
    index: Int[Tensor, " batch"]  # row in the data set
    seed: int = 0
    step: int = 0  # where training stands: momentum, temperature and weights may follow it
    steps: int = 1
    saliency: tuple[Float[Tensor, "batch _ _"], ...] = ()  # where the foreground is in each view, from views that know

    @property
    def progress(self) -> float:
        """Share of the training that is done, 0 at its first step."""
        return self.step / self.steps

    @property
    def second(self) -> Tensor:
        """The last view that is as large as the first: the second, or a third, fresh one; never a small crop."""
        return next(view for view in reversed(self.views) if view.shape == self.views[0].shape)


class Encoded(NamedTuple):
    """What an encoder returns: the last spatial activation and its pooled vector."""

    map: Float[Tensor, "batch dim height width"]
    vector: Float[Tensor, "batch dim"]


class Output(NamedTuple):
    """What a method's forward pass returns; the objective is the sum of `losses`."""

    losses: dict[str, Tensor]  # named scalars, already weighted
    carry: Any = None  # what after_step needs from this pass
    facts: Mapping[str, Tensor | float] = {}  # scalars worth watching; "chance/<loss>" is a blind encoder's loss
    target: Any = None  # what another embedding of the same images is held against by `toward`, if the base has one

    @property
    def total(self) -> Float[Tensor, ""]:
        """The objective."""
        return reduce(add, self.losses.values())


class ParamGroup(NamedTuple):
    """Parameters that share an optimiser and a schedule."""

    name: str
    parameters: list[nn.Parameter]
    adam: float | None = None  # rate of an Adam of its own, in place of the method's optimiser: the decoder's
    constant: bool = False  # keeps its learning rate: SimSiam's predictor


class Probe(NamedTuple):
    """What a criterion may look at: nothing here carries a graph into the encoder."""

    feature: Float[Tensor, "batch dim"]
    project: Callable[[Tensor], Tensor]  # feature → embedding, differentiable
    second: Callable[[], Tensor]  # embedding of the second view, computed only when asked for


@runtime_checkable
class Network(Protocol):
    """What is asked of every `nn.Module`, for those that are known by what they do."""

    def modules(self) -> Iterator[nn.Module]:
        """It, and all that is in it."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The same with their names; its own is empty."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """All weights in it."""

    def state_dict(self) -> dict[str, Any]:
        """Weights and buffers by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Restore what `state_dict` gave."""

    def train(self, mode: bool = True) -> Any:
        """Training mode, or evaluation mode."""

    def eval(self) -> Any:
        """Evaluation mode."""

    def to(self, *where: Any, **how: Any) -> Any:
        """To a device, a type or a memory layout."""


@runtime_checkable
class Encodes(Network, Protocol):
    """Image to map and vector: `models.encoder.Encoder`."""

    name: str
    dim: int
    layout: Literal["pytorch", "caffe"]
    pixels: Pixels
    trunk: nn.Module

    def __call__(self, image: Float[Tensor, "batch 3 height width"]) -> Encoded:
        """Both."""


@runtime_checkable
class Method(Network, Protocol):
    """A self-supervised objective around an encoder. Wrappers are Methods too, so they nest."""

    @property
    def encoder(self) -> Encodes:
        """What is trained."""

    def __call__(self, batch: Batch) -> Output:
        """`forward`, and what is hooked to it."""

    def project(self, feature: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch k"]:
        """g: feature to embedding."""

    def forward(self, batch: Batch) -> Output:
        """Losses of a batch. Reads state, never writes it."""

    def after_step(self, carries: Sequence[Any]) -> None:
        """Write state (teacher, bank) once per optimiser step; one carry per accumulated forward pass."""

    def probe(self, batch: Batch) -> Float[Tensor, "batch 3 _ _"]:
        """The view that criteria compare a plain image with."""

    def embed(self, image: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """The feature that is evaluated."""

    def param_groups(self) -> list[ParamGroup]:
        """Every trained parameter, exactly once."""


@runtime_checkable
class Comparing(Method, Protocol):
    """A Method that offers a "comparison": its own loss between two embeddings of the student's."""

    def compare(self, first: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """Between embeddings of the same images."""

    def compare_own(self, embedding: Float[Tensor, "batch k"], second: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
        """Each image's own part of it, summed: the loss behind Grad-CAM."""


@runtime_checkable
class Targeted(Method, Protocol):
    """A Method that offers a "target": its own loss takes further embeddings of the same images."""

    def toward(self, embedding: Float[Tensor, "batch k"], target: Tensor) -> Float[Tensor, ""]:
        """Its loss of an embedding, against the target that its output of the same batch names."""


class Preparation(NamedTuple):
    """What is trained before training: pairs need a decoder that can rebuild images."""

    name: str  # of the stage
    method: Method
    product: nn.Module  # what stays of it, and can be kept for the next run that would make the same
    epochs: int


@runtime_checkable
class Criterion(Protocol):
    """Says how important each feature dimension is for telling images apart."""

    eps: float

    def importance(self, probe: Probe) -> Float[Tensor, "batch dim"]:
        """In [0, 1]; 1 means: leave this dimension alone."""

    def after_step(self, feature: Float[Tensor, "batch dim"]) -> None:
        """Remember the features of a step; most remember nothing."""
        return


class Seen(NamedTuple):
    """Views, from a maker that knows where their foreground is."""

    views: tuple[Float[Tensor, "batch 3 _ _"], ...]
    saliency: tuple[Float[Tensor, "batch _ _"], ...] = ()  # 0 to 1, a map per view, of any side

    @staticmethod
    def of(made: tuple[Tensor, ...] | Seen) -> Seen:
        """What any maker of views returned."""
        return made if isinstance(made, Seen) else Seen(made)


@runtime_checkable
class Views(Protocol):
    """Random augmentation of whole batches: stored bytes to normalised views.

    One that can make the views of some rows alone has `some` as well, by which each of the processes that share a batch
    makes its own: `aspect` and `index` are the whole batch's there, and so is what is drawn; `lookup` gives the images
    of rows. Without it all views are made, and the others' thrown away.

    One that is an `nn.Module` has its state moved, saved and resumed with the method's; one that has `after_step(step,
    method)` is told after every step, and may look at the method to change that state. What that returns, facts by
    name, goes into the record.
    """

    def __call__(
        self,
        images: UInt8[Tensor, "batch 3 side side"],
        aspect: Float[Tensor, " batch"],
        index: Int[Tensor, " batch"],
        generator: Generator,
    ) -> tuple[Float[Tensor, "batch 3 _ _"], ...] | Seen:
        """Views of each image; `aspect` is the original's width / height, `index` its row in the data set."""
