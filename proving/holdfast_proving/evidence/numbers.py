"""Losses and gradient norms of a training: sound ones, and wrong ones in each form that a scenario can name."""

from __future__ import annotations

from math import inf, nan
from random import Random
from typing import NamedTuple

from holdfast_proving.scenario.forms import NumberForm

JUMP = 12.0
FALSE_STEPS: dict[NumberForm, int] = {"norm nan": 3, "norm jump": 3, "loss jump": 1}
"""Steps that a false alarm lasts."""


class Numbers(NamedTuple):
    loss: float
    norm: float


def sound(step: int) -> Numbers:
    """Return what a healthy training has after this step: noise around a power law, the same in each run."""
    chance = Random(step)
    loss = 11.0 * max(1, step) ** -0.1 * chance.lognormvariate(0.0, 0.03)
    return Numbers(loss, (0.4 + 30.0 / max(1, step)) * chance.lognormvariate(0.0, 0.2))


def spoiled(form: NumberForm, numbers: Numbers) -> Numbers:
    """Return what these numbers are in a spoiled state."""
    quantity, _, kind = form.partition(" ")
    value = {"nan": nan, "inf": inf}.get(kind)
    if quantity == "loss":
        return Numbers(JUMP * numbers.loss if value is None else value, nan if value is not None else numbers.norm)
    return Numbers(numbers.loss, JUMP * numbers.norm if value is None else value)
