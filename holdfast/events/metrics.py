"""Samples."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Metric
from holdfast.events.parts.samples import IterationSample, LoggedSample, RankTelemetry, StepSample
from holdfast.events.parts.scalars import Count, Name, Step


class StepsMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The steps that the ranks of a node completed since the last such event.

    `before` counts those that the node's ranks completed earlier in this generation, `missed` those that nobody read:
    who adds them up sees whether an event is still on its way. `world_size` is how many ranks the job has. What the
    script has said of its model: `flops_per_token` for all ranks together, `peak_flops` of one rank's device.
    `iterations` are those of the node's first rank, by its collectives.
    """

    samples: tuple[StepSample, ...]
    missed: Count = 0
    before: Count = 0
    world_size: Count = 0
    flops_per_token: float | None = None
    peak_flops: float | None = None
    iterations: tuple[IterationSample, ...] = ()


class NumbersLogged(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """What ranks of a node wrote into a training log since the last such event: TensorBoard's or Weights & Biases'.

    `tags` says under which tag of the log each quantity was found. `before` counts the samples that the node said
    earlier in this generation, of all logs.
    """

    samples: tuple[LoggedSample, ...]
    kind: Literal["tensorboard", "wandb"]
    path: str
    tags: dict[str, str]
    before: Count = 0


class TelemetryMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """What the ranks of a node used in the last `interval_s`, seen from outside."""

    ranks: tuple[RankTelemetry, ...]
    interval_s: float


class CopiesMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The newest step that all ranks of a node have sealed in the memory of another node, `keeper`, as well.

    Said every two seconds at most. `skipped` steps since the last were due and not sent. `coming_step` is the one that
    the node keeps on both because its order named it, or one before it, ahead of time. `backup_bytes` of it were sent,
    and `replicated_bytes` by data-parallel replicas of its ranks.
    """

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    backup_bytes: Count
    took_s: float
    skipped: Count = 0
    replicated_bytes: Count = 0
    coming_step: Step | None = None


AnyMetric = StepsMeasured | NumbersLogged | TelemetryMeasured | CopiesMeasured
