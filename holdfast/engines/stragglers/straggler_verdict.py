"""Types for the verdict on a recorded job: causes of slowness and their shares. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

CauseKind = Literal[
    "machine",
    "link",
    "communication",
    "stage_imbalance",
    "sequence_length_imbalance",
    "pauses",
    "none",
]
"""`link`: transfers between certain workers; `communication`: transfers everywhere. `pauses`: single passes that pause
on any worker, usually for garbage collection. Only `machine` evicts nodes."""


class SlowWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker: one data-parallel rank of one pipeline stage, and its global ranks ((): not recorded). `times`: compute
    time relative to its peers in the same stage."""

    dp_rank: int
    stage: int
    ranks: tuple[int, ...] = ()
    times: float = 1.0


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause."""

    kind: CauseKind
    share: float
    """Part of the time lost, 0 to 1."""
    saved_s: float
    """Seconds per step that would be saved without the cause."""
    words: str
    workers: tuple[SlowWorker, ...] = ()
    stages: tuple[int, ...] = ()
    first_step: int | None = None
    """First step at which it occurs; None: throughout."""
    last_step: int | None = None
    evidence: tuple[str, ...] = ()
    """Lines that can be checked by hand."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of what-if analysis: step times replayed with some operations at their ideal duration."""

    recorded_s: float
    replayed_s: float
    ideal_s: float
    slowdown: float
    """S: replayed as recorded, over replayed ideal."""
    by_kind: dict[str, float]
    """S_t: all ideal but one kind of operation."""
    by_dp_rank: tuple[float, ...]
    """S_w of a data-parallel rank."""
    by_stage: tuple[float, ...]
    """S_w of a stage."""
    by_worker: tuple[tuple[float, ...], ...]
    """S_w: all ideal but one worker, [dp_rank][stage]."""
    worst_workers: float
    """M_W: share of lost time regained with the slowest 3 % of workers ideal."""
    last_stage: float
    """M_S: the same with the last stage ideal."""
    replay_error: float
    """Replayed over recorded, less 1."""


class SlownessVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a slow job."""

    name: str
    verdict: CauseKind
    """Kind of the greatest cause."""
    is_machine_fault: bool
    summary: str
    confidence: float
    causes: tuple[Cause, ...]
    """All, greatest first."""
    suspects: tuple[SlowWorker, ...]
    evict: tuple[int, ...]
    """Global ranks of the machines at fault; may be empty."""
    what_if: WhatIf
    forward_backward_correlation: float
    """Over microbatches, within workers."""
    dp_size: int
    pp_size: int
    steps: int
    operations: int
    warnings: tuple[str, ...] = ()
