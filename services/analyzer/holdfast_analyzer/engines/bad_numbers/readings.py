"""Readings of losses and gradient norms: of one rank, and of all ranks of a step. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from holdfast.events.parts.samples import LoggedSample, StepSample

Quantity = Literal["loss", "grad_norm"]
Kind = Literal["nan", "inf", "jump"]
QUANTITIES: tuple[Quantity, ...] = ("loss", "grad_norm")


class NumberReading(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one quantity that one rank reported for a step."""

    step: int
    quantity: Quantity
    rank: int
    value: float | None
    """None: it is not finite."""
    not_finite: Literal["", "nan", "inf"] = ""

    @property
    def size(self) -> float:
        return float("inf") if self.value is None else self.value


class NumberFault(msgspec.Struct, frozen=True, kw_only=True):
    """A number that is not finite (`value` None), or far above the level."""

    step: int
    quantity: Quantity
    kind: Kind
    rank: int
    value: float | None
    level: float | None
    told_by: Literal["", "tensorboard", "wandb"] = ""
    tag: str = ""
    logged_step: int | None = None
    elsewhere: Literal["", "sound", "bad"] = ""
    """State of the quantity at that step by the reports of other nodes; "": none."""


class WaitingFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that is not emitted yet, as other nodes may still report of its step."""

    fault: NumberFault
    cause: str
    """Id of the event that showed it."""
    since: datetime


class OpenStep(msgspec.Struct):
    """A step that some ranks have not reported yet."""

    reports: int = 0
    readings: dict[Quantity, int] = msgspec.field(default_factory=dict)
    """Number of ranks that reported the quantity."""
    worst: dict[Quantity, NumberReading] = msgspec.field(default_factory=dict)
    worst_node: dict[Quantity, str] = msgspec.field(default_factory=dict)
    elsewhere: dict[Quantity, NumberReading] = msgspec.field(default_factory=dict)
    """The worst reading of all other nodes than that of `worst`."""
    unknown: dict[Quantity, NumberReading] = msgspec.field(default_factory=dict)
    """NaN from ranks that have never reported a number."""

    def add(self, reading: NumberReading, node: str) -> None:
        name = reading.quantity
        self.readings[name] = self.readings.get(name, 0) + 1
        worst = self.worst.get(name)
        if worst is None or reading.size > worst.size:
            if worst is not None and self.worst_node[name] != node:
                self.elsewhere[name] = worst
            self.worst[name], self.worst_node[name] = reading, node
        elif node != self.worst_node[name]:
            other = self.elsewhere.get(name)
            if other is None or reading.size > other.size:
                self.elsewhere[name] = reading


def reading_of(name: Quantity, sample: StepSample | LoggedSample) -> NumberReading | None:
    """Return a rank's reading of one quantity in a sample; None if the sample does not have it."""
    if name in sample.not_finite:
        return not_finite(name, sample)
    value = sample.loss if name == "loss" else sample.grad_norm
    if value is None:
        return None
    return NumberReading(step=sample.step, quantity=name, rank=sample.rank, value=value)


def not_finite(name: Quantity, sample: StepSample | LoggedSample) -> NumberReading:
    kind: Literal["nan", "inf"] = "nan" if sample.not_finite[name] == "nan" else "inf"
    return NumberReading(step=sample.step, quantity=name, rank=sample.rank, value=None, not_finite=kind)


def fault_of(reading: NumberReading, level: float | None) -> NumberFault:
    """Return the fault that a bad reading shows. `level`: the usual value before it; None: not known."""
    return NumberFault(
        step=reading.step,
        quantity=reading.quantity,
        kind=reading.not_finite or "jump",
        rank=reading.rank,
        value=reading.value,
        level=level,
    )
