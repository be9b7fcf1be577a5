"""Optimisers and their schedules: a rule for the networks, Adam for a decoder, rates that change with the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wingbar.errors import UserError
from wingbar.methods.schedules import cosine
from wingbar.train.scaling import LossScale
from wingbar.types import ParamGroup

Settings = dict[str, Any]  # a parameter group as torch wants it


# --- rates -----------------------------------------------------------------------------------------------------------


def literal(lr: float, batch: int) -> float:
    """The rate as given."""
    return lr


def linear256(lr: float, batch: int) -> float:
    """The rate per 256 images, scaled to the batch (A30)."""
    return lr * batch / 256


class Factors(NamedTuple):
    """On the initial rates, at a step."""

    encoder: float  # 0: it rests, and gets no gradient
    others: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Heads alone, then warm-up, then a cosine over what remains; as many of the three as asked for.

    First the heads learn alone at their full initial rate; then the encoder's rate rises while the heads keep theirs.
    With H steps of heads alone and W of warm-up, each rounded to whole steps, the cosine begins at step B = H + W:

    - step < H: the encoder rests; the factor of the others is 1;
    - H ≤ step < B: the encoder's factor is (step − H + 1) / W; that of the others is the same if H = 0, else 1;
    - step ≥ B: both are (1 + cos(π · done / whole)) / 2. With `how="step"`, done = step − B and whole = steps − B;
      with `how="epoch"`, done is the epochs completed since B and whole = (steps − B) / per_epoch. "constant": 1.

    Groups marked constant follow none of this.

    >>> schedule = Schedule(steps=8, per_epoch=2, how="step", heads=1.0, warmup=2.0)
    >>> [(factors.encoder, round(factors.others, 3)) for factors in map(schedule, range(2, 8))]
    [(0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.0, 1.0), (0.5, 0.5)]
    """

    steps: int
    per_epoch: int
    how: Literal["epoch", "step", "constant"] = "epoch"
    warmup: float = 0.0  # epochs
    heads: float = 0.0  # epochs

    def __post_init__(self) -> None:
        _, begin = self._phases()
        if begin and begin >= self.steps:
            raise UserError(
                f"warm-up ({self.warmup:g} epochs) and heads alone ({self.heads:g}) leave nothing of a training of "
                f"{self.steps / self.per_epoch:g} epochs; shorten them, or train for more epochs"
            )

    def __call__(self, step: int) -> Factors:
        """The factors at a step."""
        alone, begin = self._phases()
        if step < alone:
            return Factors(0.0, 1.0)
        if step < begin:
            warm = (step - alone + 1) / (begin - alone)
            return Factors(warm, 1.0 if alone else warm)
        done, whole = step - begin, float(self.steps - begin)
        if self.how == "epoch":
            done, whole = done // self.per_epoch, whole / self.per_epoch
        falling = 1.0 if self.how == "constant" else cosine(done, whole)
        return Factors(falling, falling)

    def _phases(self) -> tuple[int, int]:
        """The steps at which heads are no longer alone, and at which the cosine begins."""
        alone = round(self.heads * self.per_epoch)
        return alone, alone + round(self.warmup * self.per_epoch)


# --- optimisers ------------------------------------------------------------------------------------------------------


class Optimizers:
    """Several optimisers that step as one; what clips is of the first one: `clip` is the largest norm of its whole
    gradient, `clip_each` of that of each of its parameters."""

    def __init__(self, *optimizers: torch.optim.Optimizer, clip: float = math.inf, clip_each: float = math.inf) -> None:
        self.all = optimizers
        self.scale: LossScale | None = None  # of losses, in fp16
        self._clip, self._clip_each = clip, clip_each
        self._resting: list[nn.Parameter] | None = None  # what `only_heads` turned off, while it is on

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self.all:
            optimizer.zero_grad(set_to_none=True)

    def scaled(self, loss: Tensor) -> Tensor:
        """What is to be backpropagated in place of a loss."""
        return loss if self.scale is None else self.scale(loss)

    def step(self) -> bool:
        """Update every parameter once, with clipped gradients if asked for; False: they overflowed, nothing moved."""
        if self.scale is not None:
            return self.scale.step(self.groups, self._update)
        self._update()
        return True

    def _update(self) -> None:
        clipped = [parameter for group in self.all[0].param_groups for parameter in group["params"]]
        if self._clip_each < math.inf:
            clip_each(clipped, self._clip_each)
        if self._clip < math.inf:
            nn.utils.clip_grad_norm_(clipped, self._clip)
        for optimizer in self.all:
            optimizer.step()

    def set_rates(self, factor: float | Factors) -> None:
        """Initial rate × factor; groups marked constant keep theirs, and at 0 the encoder rests."""
        factors = factor if isinstance(factor, Factors) else Factors(factor, factor)
        self.only_heads(factors.encoder == 0)
        for group in self.groups:
            due = factors.encoder if group["name"] == "encoder" else factors.others
            group["lr"] = group["initial_lr"] * (1.0 if group["constant"] else due)

    def only_heads(self, on: bool) -> None:
        """While on, the encoder's parameters get no gradient, hence no momentum, and stay; off, they are as before.

        Running statistics of the encoder are no parameters: they go on following the images.
        """
        if on and self._resting is None:
            encoder = [one for group in self.groups if group["name"] == "encoder" for one in group["params"]]
            self._resting = [parameter for parameter in encoder if parameter.requires_grad]
            for parameter in self._resting:
                parameter.requires_grad_(False).grad = None  # an optimiser would apply one that is left over
        elif not on and self._resting is not None:
            for parameter in self._resting:
                parameter.requires_grad_()
            self._resting = None

    @property
    def groups(self) -> list[Settings]:
        """Every parameter group of every optimiser."""
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def state_dict(self) -> list[dict[str, Any]]:
        """States in order."""
        return [optimizer.state_dict() for optimizer in self.all]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore what `state_dict` gave."""
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


def clip_each(parameters: Sequence[nn.Parameter], most: float) -> None:
    """Shorten the gradient of each parameter that is longer than `most`, whatever the others are (DINO).

    >>> long, short = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    >>> long.grad, short.grad = torch.tensor([6.0, 8.0]), torch.tensor([2.0])
    >>> clip_each([long, short], 5.0)
    >>> long.grad, short.grad
    (tensor([3.0000, 4.0000]), tensor([2.]))
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        norms = torch.stack(torch._foreach_norm(gradients))  # together: one by one they keep the host busy
        factors = (most / (norms + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, list(factors.unbind()))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the networks learn; `momentum` is of SGD and LARS, `betas` are AdamW's."""

    name: Literal["sgd", "lars", "adamw"] = "sgd"
    lr: float
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    spare: bool = False  # no weight decay, and no trust ratio of LARS, for norms and biases: at most one dimension
    encoder: float = 1.0  # factor on the encoder's rate
    layer_decay: float = 1.0  # rate of a layer of the encoder in units of the next one's; the last has the full rate
    patches: float = 1.0  # factor on the rate of the patch embedding
    clip: float = math.inf  # largest norm of the gradient of all that learns by this rule
    clip_each: float = math.inf  # largest norm of the gradient of each parameter


def build_optimizers(
    groups: Sequence[ParamGroup],
    rule: Rule,
    *,
    layers: Sequence[Sequence[nn.Parameter]] = (),
    patches: Sequence[nn.Parameter] = (),
) -> Optimizers:
    """The rule's optimiser, and an Adam for groups that want one of their own. Fused where they can be.

    `layers` are the encoder's parameters from the first layer to the last, for layer decay (`encoder.layers_of`);
    `patches` are those of them that have a factor of their own (`encoder.patch_embedding`).
    """
    own = [(group, group.adam) for group in groups if group.adam is not None]
    main = [group for group in groups if group.adam is None]
    fused = all(parameter.is_cuda for group in groups for parameter in group.parameters)
    built: list[torch.optim.Optimizer] = []
    if main:
        parts = [part for group in main for part in _parts(group, rule, layers, patches)]
        built.append(_ruled(parts, rule, fused=fused))
    if own:
        whole = [_settings(group, group.parameters, lr) for group, lr in own]
        built.append(torch.optim.Adam(whole, lr=own[0][1], fused=fused))
    return Optimizers(*built, clip=rule.clip, clip_each=rule.clip_each) if main else Optimizers(*built)


def _parts(
    group: ParamGroup, rule: Rule, layers: Sequence[Sequence[nn.Parameter]], patches: Sequence[nn.Parameter]
) -> list[Settings]:
    """A group whole; or split by layer, from the first to the last, by what is slow, and by what is spared."""
    lr, layered = rule.lr, False
    if group.name == "encoder":
        lr, layered = rule.lr * rule.encoder, rule.layer_decay != 1
    if layered and not layers:
        raise ValueError("layer decay needs the encoder's layers, got none; give layers=layers_of(encoder.trunk)")
    slow = {id(one) for one in patches} if group.name == "encoder" else set[int]()
    if not layered and not slow and not rule.spare:
        return [_settings(group, group.parameters, lr)]
    above = {id(one): count for count, layer in enumerate(reversed(layers)) for one in layer} if layered else {}
    split: dict[tuple[int, bool, bool], list[nn.Parameter]] = {}
    for parameter in group.parameters:  # one that is in no layer has the full rate, as the last layer has
        height = -above.get(id(parameter), 0)
        key = (height, id(parameter) in slow, rule.spare and parameter.ndim <= 1)
        split.setdefault(key, []).append(parameter)
    return [
        _settings(group, split[key], lr * rule.layer_decay ** -key[0] * (rule.patches if key[1] else 1), spared=key[2])
        for key in sorted(split)
    ]


def _settings(group: ParamGroup, parameters: Sequence[nn.Parameter], lr: float, *, spared: bool = False) -> Settings:
    whole = {"params": parameters, "name": group.name, "lr": lr, "initial_lr": lr, "constant": group.constant}
    return whole | ({"weight_decay": 0.0} if spared else {})


def _ruled(parts: Sequence[Settings], rule: Rule, *, fused: bool) -> torch.optim.Optimizer:
    """torch's SGD or AdamW, or timm's LARS: momentum on decayed gradients × 0.001 · |w| / (|g| + decay · |w|).

    timm's leaves parts without weight decay unscaled, which is how spared ones are left alone; `always_adapt` tells it
    to scale the others even where the rule has no decay.
    """
    lr, momentum, decay = rule.lr, rule.momentum, rule.weight_decay
    if rule.name == "sgd":
        return torch.optim.SGD(parts, lr=lr, momentum=momentum, weight_decay=decay, fused=fused)
    if rule.name == "adamw":
        return torch.optim.AdamW(parts, lr=lr, betas=rule.betas, weight_decay=decay, fused=fused)
    from timm.optim.lars import Lars  # timm takes longer to import than torch

    told = [{**part, "always_adapt": "weight_decay" not in part} for part in parts]
    return Lars(told, lr=lr, momentum=momentum, weight_decay=decay)
