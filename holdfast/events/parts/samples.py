"""Samples of ranks and groups: steps, iterations, profiles, telemetry, pace."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.events.parts.scalars import INTEGER_MAX, Count, Moment, Name, Step


class StepSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed step of one rank.

    `not_finite` has what JSON cannot carry: of `loss` and `grad_norm` those that are nan, inf or -inf.
    """

    rank: Count
    step: Step
    ended_at: Moment
    duration_s: float
    loss: float | None = None
    grad_norm: float | None = None
    tokens: Count | None = None
    not_finite: dict[str, str] = {}


class IterationSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """One iteration of a rank, as its collectives tell it, whatever its script says of steps.

    `iteration` counts them on this rank and in this generation. `pattern` numbers what repeats: training and evaluation
    repeat different things. `in_calls_s` is what the rank waited in collectives; None: not known.
    """

    rank: Count
    iteration: Count
    duration_s: float
    pattern: Count = 0
    in_calls_s: float | None = None


class ProfiledCalls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """Collectives of one kind that a rank took part in lately.

    `runs` are the group's ranks, as runs of (first, count, stride). `sequences` are those of the group, the same on all
    its ranks; `seconds` what the rank waited in each; `before` and `before_s` the same of those before the iterations
    that were asked for. `count` and `total_s`: of all in these iterations.
    """

    group: str
    description: str
    runs: tuple[tuple[Count, Count, int], ...]
    operation: str
    bytes: Count
    sequences: tuple[Count, ...]
    seconds: tuple[float, ...]
    before: tuple[Count, ...] = ()
    before_s: tuple[float, ...] = ()
    count: Count = 0
    total_s: float = 0.0


class RankProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank did in its last iterations, oldest first: seconds each took, and those in collectives.

    `healthy_s` and `healthy_work_s`: an iteration before these, and what of it was outside of collectives; 0: not
    known. `calls` are the kinds of collectives that it waited in longest. `unread`: why there is nothing.
    """

    rank: Count
    step: Step = -1
    iterations_s: tuple[float, ...] = ()
    in_calls_s: tuple[float, ...] = ()
    healthy_s: float = 0.0
    healthy_work_s: float = 0.0
    calls: tuple[ProfiledCalls, ...] = ()
    unread: str = ""


class RankTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the processes of one rank used lately: its own and those that it started. None: this may not be read.

    `sent_bytes_per_s` is of its whole node.
    """

    rank: Count
    cpu_cores: float | None = None
    memory_bytes: Count | None = None
    io_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    collectives_per_s: float | None = None


SlowStage = Literal["profile", "hold", "transfers", "over"]

SlowCause = Literal["computation", "communication", "stage_imbalance", "sequence_imbalance", "unknown"]


class RankPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A rank's last iterations by their medians: seconds, and what of them was in and outside of collectives."""

    rank: Count
    node: Name
    iteration_s: float
    work_s: float
    in_calls_s: float


class GroupPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A collective of a group: what it takes once all its ranks are there, and how long the last one lets wait."""

    group: str
    kind: str
    operation: str
    bytes: Count
    ranks: Count
    transfer_s: float
    waiting_s: float


class FlaggedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of ranks that stood elsewhere than most in `times` rounds of stacks: `machine`, or a mesh dimension."""

    kind: str
    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    times: Count = 1


class StackRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round of stacks of a job that goes on: how many of its ranks could be read, and the `outliers`, which stood
    elsewhere than most; the first of very many. `unanswered` nodes gave no stacks in time."""

    at: Moment
    read: Count
    is_counted: bool = True
    """False: too few ranks could be read, and the round flags no group."""

    outliers: tuple[Count, ...] = ()
    flagged: FlaggedGroup | None = None
    unanswered: tuple[Name, ...] = ()


class LoggedSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank wrote into a training log at one moment.

    `step` is the one that the rank had completed then, by its ledger; `logged_step` is the log's own number, by
    whatever it counts. `mfu` is a share of 1. `not_finite` has what JSON cannot carry, as in `StepSample`.
    """

    rank: Count
    step: Step
    logged_step: Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
    logged_at: Moment
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    learning_rate: float | None = None
    not_finite: dict[str, str] = {}
