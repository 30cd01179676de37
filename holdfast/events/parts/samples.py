"""Samples of ranks and groups: steps, iterations, profiles, telemetry, pace."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.events.parts.scalars import INTEGER_MAX, Count, Integer, Moment, Name, Seconds, Step

_Word = Annotated[str, msgspec.Meta(max_length=16)]
NotFinite = Annotated[dict[_Word, _Word], msgspec.Meta(max_length=8)]


class StepSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed step of one rank."""

    rank: Count
    step: Step
    ended_at: Moment
    duration_s: Seconds
    loss: float | None = None
    grad_norm: float | None = None
    tokens: Count | None = None
    not_finite: NotFinite = {}
    """`loss` or `grad_norm` -> "nan", "inf" or "-inf", which JSON numbers cannot express."""


class IterationSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """One iteration of a rank, found in its collectives, independent of the steps that its script reports."""

    rank: Count
    iteration: Count
    """Number of the iteration on this rank and in this generation."""
    duration_s: Seconds
    pattern: Count = 0
    """Number of the repeated pattern: training and evaluation repeat different ones."""
    in_calls_s: Seconds | None = None
    """Seconds that the rank waited in collectives; None: not known."""


class ProfiledCalls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """Recent collectives of one kind that a rank took part in."""

    group: str
    description: str
    runs: tuple[tuple[Count, Count, Integer], ...]
    """Ranks of the group as runs of (first, count, stride)."""
    operation: str
    bytes: Count
    sequences: tuple[Count, ...]
    """Sequence numbers in the group, the same on all its ranks."""
    seconds: tuple[Seconds, ...]
    """Seconds that the rank waited in each."""
    before: tuple[Count, ...] = ()
    """Sequence numbers before the iterations that were asked for."""
    before_s: tuple[Seconds, ...] = ()
    """Seconds that the rank waited in each of those."""
    count: Count = 0
    """Number of calls in these iterations."""
    total_s: Seconds = 0.0
    """Seconds of all calls in these iterations."""


class RankProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last iterations of a rank, oldest first."""

    rank: Count
    step: Step = -1
    iterations_s: tuple[Seconds, ...] = ()
    """Seconds of each iteration."""
    in_calls_s: tuple[Seconds, ...] = ()
    """Seconds in collectives, of each iteration."""
    healthy_s: Seconds = 0.0
    """Seconds of an iteration before these; 0: not known."""
    healthy_work_s: Seconds = 0.0
    """Part of it outside of collectives; 0: not known."""
    calls: tuple[ProfiledCalls, ...] = ()
    """The kinds of collectives in which the rank waited longest."""
    unread: str = ""
    """Reason why there is no profile."""


class RankTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recent use of resources by the processes of one rank, children included. None: not readable."""

    rank: Count
    cpu_cores: float | None = None
    memory_bytes: Count | None = None
    io_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    """Bytes sent by the whole node, by RDMA too."""
    collectives_per_s: float | None = None


SlowStage = Literal["profile", "hold", "transfers", "over"]

SlowCause = Literal["computation", "communication", "stage_imbalance", "sequence_imbalance", "unknown"]


class RankPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """Medians of a rank's last iterations, in seconds: whole, and outside and inside of collectives."""

    rank: Count
    node: Name
    iteration_s: float
    work_s: float
    in_calls_s: float


class GroupPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A collective of a group: seconds it takes once all ranks are there, and seconds that the last rank delays it."""

    group: str
    kind: str
    operation: str
    bytes: Count
    ranks: Count
    transfer_s: float
    waiting_s: float


class FlaggedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of ranks whose stacks differed from the others in `times` rounds."""

    kind: str
    """`machine`, or a mesh dimension."""
    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    times: Count = 1


class StackRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round of stacks of a job that goes on."""

    at: Moment
    read: Count
    """Ranks whose stacks could be read."""
    is_counted: bool = True
    """False: too few ranks could be read, and the round flags no group."""

    outliers: tuple[Count, ...] = ()
    """Ranks whose stacks differ from most; the first if there are very many."""
    flagged: FlaggedGroup | None = None
    unanswered: tuple[Name, ...] = ()
    """Nodes that sent no stacks in time."""


class LoggedSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers that a rank wrote into a training log at one moment."""

    rank: Count
    step: Step
    """Step that the rank had completed at that time, by its ledger."""
    logged_step: Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
    """Number in the log, whatever it counts."""
    logged_at: Moment
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization, from 0 to 1."""
    learning_rate: float | None = None
    not_finite: NotFinite = {}
    """Quantities that are not finite, as in `StepSample`."""
