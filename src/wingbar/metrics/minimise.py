"""Many smooth convex problems minimised side by side: L-BFGS with one history, step and end for each of them.

Side by side they are a few large products for a GPU, where one after the other they would be many small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Points = Float[Tensor, "problem rows columns"]
Numbers = Float[Tensor, "problem"]
Objective = Callable[[Points], tuple[Numbers, Points]]  # values and gradients

SUFFICIENT, APPROXIMATE = 1e-4, 0.8  # Armijo's condition, and Hager and Zhang's where rounding hides the decrease
ROUNDING = 1e-6  # of a value in float32, relative
HALVINGS = 25
MEMORY = 10  # steps that suggest the curvature


class Pair(NamedTuple):
    """A step and the change of the gradient along it; `inverse` is 1 / their product, or 0 if it says nothing."""

    step: Points
    change: Points
    inverse: Float[Tensor, "problem 1 1"]


class State(NamedTuple):
    """Where each problem stands."""

    point: Points
    value: Numbers
    gradient: Points


def minimise(objective: Objective, start: Points, *, tolerance: Numbers, iterations: int) -> Points:
    """The points at which no component of a problem's gradient exceeds its `tolerance`, or no step leads lower."""
    state, history = State(start, *objective(start)), deque[Pair](maxlen=MEMORY)
    moving = torch.ones_like(state.value, dtype=torch.bool)
    for _ in range(iterations):
        moving = moving & (state.gradient.abs().amax(dim=(1, 2)) > tolerance)
        if not moving.any():
            break
        direction = -_towards(state.gradient, history).where(moving[:, None, None], 0)
        if not history:  # nothing is known of the scale yet
            direction = direction / state.gradient.abs().sum(dim=(1, 2), keepdim=True).clamp(min=1)
        reached, moving = _search(objective, state, direction, moving)
        history.append(_pair(state, reached))
        state = reached
    return state.point


def _dot(a: Points, b: Points) -> Float[Tensor, "problem 1 1"]:
    return (a * b).sum(dim=(1, 2), keepdim=True)


def _pair(before: State, after: State) -> Pair:
    step, change = after.point - before.point, after.gradient - before.gradient
    product = _dot(step, change)
    telling = product > torch.finfo(product.dtype).tiny  # less has no finite inverse
    return Pair(step, change, torch.where(telling, 1 / product, 0))


def _towards(gradient: Points, history: deque[Pair]) -> Points:
    """The gradient times the inverse Hessian that the history suggests: the two-loop recursion."""
    shares = list[Tensor]()
    for step, change, inverse in reversed(history):
        shares.append(inverse * _dot(step, gradient))
        gradient = gradient - shares[-1] * change
    if history:
        _, change, inverse = history[-1]  # the curvature along the last step sets the scale
        gradient = torch.where(inverse > 0, 1 / (inverse * _dot(change, change)), 1) * gradient
    for (step, change, inverse), share in zip(history, reversed(shares), strict=True):
        gradient = gradient + (share - inverse * _dot(change, gradient)) * step
    return gradient


def _search(
    objective: Objective, state: State, direction: Points, moving: Bool[Tensor, " problem"]
) -> tuple[State, Bool[Tensor, " problem"]]:
    """A lower point along each direction, its length halved until it is; and which problems found one."""
    slope = _dot(direction, state.gradient).flatten()
    length = moving.to(slope.dtype)
    slack = ROUNDING * state.value.abs()
    for _ in range(HALVINGS):
        point = state.point + length[:, None, None] * direction
        value, gradient = objective(point)
        lower = value <= state.value + SUFFICIENT * length * slope
        flat = (value <= state.value + slack) & (_dot(direction, gradient).flatten() <= -APPROXIMATE * slope)
        found = lower | flat | ~moving
        if found.all():
            return State(point, value, gradient), moving
        length = torch.where(found, length, length / 2)
    each = found[:, None, None]
    kept = State(point.where(each, state.point), value.where(found, state.value), gradient.where(each, state.gradient))
    return kept, moving & found
