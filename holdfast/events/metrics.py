"""Samples."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Metric
from holdfast.events.parts.devices import DeviceActivity, PortActivity
from holdfast.events.parts.ranks import require_ranks
from holdfast.events.parts.samples import IterationSample, LoggedSample, RankTelemetry, StepSample
from holdfast.events.parts.scalars import Count, Name, Seconds, Step


class StepsMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """Steps that the ranks of a node completed since the last such event; published by its agent."""

    samples: tuple[StepSample, ...]
    missed: Count = 0
    """Steps that were overwritten before the agent read them."""
    before: Count = 0
    """Steps that the node's ranks completed earlier in this generation. With `missed` it shows if an event is
    missing."""
    world_size: Count = 0
    """Ranks of the job; 0: not known."""
    flops_per_token: float | None = None
    """Floating-point operations per token, for all ranks together, as the script reports them."""
    peak_flops: float | None = None
    """Peak floating-point operations per second of one rank's device, as the script reports them."""
    iterations: tuple[IterationSample, ...] = ()
    """Iterations of the node's first rank, found in its collectives."""

    def __post_init__(self) -> None:
        require_ranks(self.world_size, (*self.samples, *self.iterations))


class NumbersLogged(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers that ranks of a node wrote into a training log since the last such event; published by its agent."""

    samples: tuple[LoggedSample, ...]
    kind: Literal["tensorboard", "wandb"]
    path: str
    tags: dict[str, str]
    """Quantity -> tag of the log under which it was found."""
    before: Count = 0
    """Samples that the node published earlier in this generation, of all logs."""


class TelemetryMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that the ranks of a node used in the last `interval_s`, measured by its agent from outside."""

    ranks: tuple[RankTelemetry, ...]
    interval_s: Seconds
    devices: tuple[DeviceActivity, ...] = ()
    """GPUs of the node, also those that no rank uses."""
    ports: tuple[PortActivity, ...] = ()
    """InfiniBand and RoCE ports of the machine."""


class CopiesMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The newest step that all ranks of a node have sealed on another node; by its agent, at most every 2 s."""

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    """The other node."""
    backup_bytes: Count
    """Bytes of this step that this node sent."""
    took_s: Seconds
    skipped: Count = 0
    """Steps since the last event that were due and not sent."""
    replicated_bytes: Count = 0
    """Bytes of this step that data-parallel replicas of its ranks sent."""
    coming_step: Step | None = None
    """Step that both nodes keep because an order named it, or a step before it, ahead of time."""


AnyMetric = StepsMeasured | NumbersLogged | TelemetryMeasured | CopiesMeasured
