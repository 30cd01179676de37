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
    """One cause. `share`: its part of the time lost (0 to 1); `saved_s`: that part in seconds per step. `first_step`,
    `last_step`: where it occurs, unless throughout. `evidence`: lines that can be checked by hand."""

    kind: CauseKind
    share: float
    saved_s: float
    words: str
    workers: tuple[SlowWorker, ...] = ()
    stages: tuple[int, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    evidence: tuple[str, ...] = ()


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of what-if analysis: step times replayed with some operations at their ideal duration. `slowdown`: S,
    replayed as recorded over replayed ideal. `by_kind`: S_t, all ideal but one kind of operation; `by_worker`: S_w, all
    ideal but one worker, [dp_rank][stage]; `by_dp_rank`, `by_stage` likewise. `worst_workers`: M_W, the share of lost
    time regained with the slowest 3 % of workers ideal; `last_stage`: M_S, with the last stage ideal. `replay_error`:
    replayed over recorded, less 1."""

    recorded_s: float
    replayed_s: float
    ideal_s: float
    slowdown: float
    by_kind: dict[str, float]
    by_dp_rank: tuple[float, ...]
    by_stage: tuple[float, ...]
    by_worker: tuple[tuple[float, ...], ...]
    worst_workers: float
    last_stage: float
    replay_error: float


class SlownessVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a slow job. `verdict`: the kind of the greatest cause; `causes`: all, greatest first. `evict`: global
    ranks of the machines at fault, or empty. `forward_backward_correlation`: over microbatches, within workers."""

    name: str
    verdict: CauseKind
    is_machine_fault: bool
    summary: str
    confidence: float
    causes: tuple[Cause, ...]
    suspects: tuple[SlowWorker, ...]
    evict: tuple[int, ...]
    what_if: WhatIf
    forward_backward_correlation: float
    dp_size: int
    pp_size: int
    steps: int
    operations: int
    warnings: tuple[str, ...] = ()
