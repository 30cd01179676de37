"""Types for tracking and locating slowness. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Direction = Literal["onset", "relief"]


class PaceChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lasting change of a job's pace."""

    direction: Direction
    iteration: int
    """The first at the new pace."""
    before_s: float
    after_s: float
    healthy_s: float
    """Pace before any slowdown."""
    detected_after: int
    """Iterations needed, the first one included."""
    ranks: tuple[int, ...] = ()
    """Ranks that measured it."""
    is_over: bool = False
    """True if the job is back at `healthy_s`."""


Cause = Literal["computation", "communication", "stage_imbalance", "sequence_imbalance"]


class GroupTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective of one group over the observed occurrences."""

    group: str
    kind: str = ""
    """Mesh dimension (`tp`, `dp`, ...; "": unknown); groups are compared within a kind."""
    ranks: tuple[int, ...]
    operation: str
    bytes: int = 0
    transfer_s: float
    """Median time from the last rank's entry to the exit, without any rank's waiting."""
    waiting_s: tuple[float, ...] = ()
    """Each rank's wait for the last one, in the order of `ranks`."""
    occurrences: int = 1
    healthy_s: float = 0.0
    """The transfer before the job became slow; 0: unknown."""


class RankWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's seconds outside of collectives in each of the last iterations, oldest first, aligned across ranks.
    `healthy_s`: the median before the job became slow; 0: unknown."""

    rank: int
    work_s: tuple[float, ...]
    healthy_s: float = 0.0


class Suspicion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks of which some may be slow; validation tests them. `ratio`: to the median of the peers."""

    cause: Cause
    ranks: tuple[int, ...]
    group: str = ""
    kind: str = ""
    ratio: float
    reason: str


class SlowSuspects(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the comparison. `harmless`: imbalances that are no machine's fault and evict no node."""

    suspicions: tuple[Suspicion, ...] = ()
    harmless: tuple[Suspicion, ...] = ()
    reason: str

    def ranks(self, cause: Cause) -> tuple[int, ...]:
        return tuple(sorted({rank for found in self.suspicions if found.cause == cause for rank in found.ranks}))


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One point-to-point test."""

    sender: int
    receiver: int


Pass = tuple[Transfer, ...]
"""Transfers that run at the same time: no rank is in two of them."""


class ValidationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Tests while training is held: GEMM on `compute_ranks`, all at once, then the passes, one by one."""

    compute_ranks: tuple[int, ...] = ()
    passes: tuple[Pass, ...] = ()


class TransferTime(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of a transfer of the plan: the mean of its repetitions. All have the same size."""

    sender: int
    receiver: int
    seconds: float


class ValidationResults(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the tests. `compute_s`: GEMM by rank, in turns that all ranks took at about the same time.
    References: durations on healthy machines; 0: unknown, so results are only compared with each other."""

    compute_s: dict[int, tuple[float, ...]] = {}
    compute_waited_s: dict[int, tuple[float, ...]] = {}
    """Part of each turn for which the rank waited for a processor that other processes used."""
    on_shared_machines: frozenset[int] = frozenset()
    """Ranks whose processors other nodes of the job use too: if one of these ranks waits, that is not its node's
    fault, and another node of the machine would be no better."""
    transfers: tuple[TransferTime, ...] = ()
    compute_reference_s: float = 0.0
    transfer_reference_s: float = 0.0


class SlowNodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A slow direction of a link between two nodes, by node rank; `ratio`: to the median of its peers."""

    sender: int
    receiver: int
    ratio: float


class ValidationVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Slow ranks, links and nodes. `nodes`: node ranks of slow ranks, and nodes whose links are all slow; a slow link
    between two nodes names no node."""

    slow_ranks: tuple[int, ...] = ()
    slow_links: tuple[SlowNodeLink, ...] = ()
    nodes: tuple[int, ...] = ()
    reason: str
    evidence: tuple[str, ...] = ()
