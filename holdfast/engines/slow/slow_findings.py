"""What tracking and locating say of a slow job. Pure types."""

from __future__ import annotations

from typing import Literal

import msgspec

Direction = Literal["onset", "relief"]


class PaceChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job got slower or faster, and stays there.

    `iteration` is the first at the new pace, `detected_after` how many it took to say so, that one included.
    `healthy_s` is the pace before it ever got slow; `is_over`: it is back there. `ranks` are those that saw it.
    """

    direction: Direction
    iteration: int
    before_s: float
    after_s: float
    healthy_s: float
    detected_after: int
    ranks: tuple[int, ...] = ()
    is_over: bool = False


Cause = Literal["computation", "communication", "stage_imbalance", "sequence_imbalance"]


class GroupTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective of one group, over the occurrences that were looked at.

    `kind` is the mesh dimension (`tp`, `dp`, ...; "": not known); groups compare within a kind. `transfer_s` is the
    median time from the last rank's entry to the exit: no rank's waiting is in it. `waiting_s`: by rank, in the
    order of `ranks`, how long each waited for the last one. `healthy_s`: the transfer before the job got slow; 0: not
    known.
    """

    group: str
    kind: str = ""
    ranks: tuple[int, ...]
    operation: str
    bytes: int = 0
    transfer_s: float
    waiting_s: tuple[float, ...] = ()
    occurrences: int = 1
    healthy_s: float = 0.0


class RankWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank spent outside of collectives in each of the last iterations, oldest first, ended at the same one for
    all ranks. `healthy_s`: the median before the job got slow; 0: not known."""

    rank: int
    work_s: tuple[float, ...]
    healthy_s: float = 0.0


class Suspicion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group that may hold who is slow: validation looks at its ranks. `ratio` is to the median of its like."""

    cause: Cause
    ranks: tuple[int, ...]
    group: str = ""
    kind: str = ""
    ratio: float
    reason: str


class SlowSuspects(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the comparison says. `harmless`: imbalances that are no machine's fault, in words; nobody is evicted for
    them."""

    suspicions: tuple[Suspicion, ...] = ()
    harmless: tuple[Suspicion, ...] = ()
    reason: str

    def ranks(self, cause: Cause) -> tuple[int, ...]:
        """The ranks under suspicion of this cause, in order."""
        return tuple(sorted({rank for found in self.suspicions if found.cause == cause for rank in found.ranks}))


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One point-to-point test: from a rank to a rank."""

    sender: int
    receiver: int


Pass = tuple[Transfer, ...]
"""Transfers that run at the same time: no rank is in two of them."""


class ValidationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to test while training is held: GEMM on `compute_ranks`, all at once, then the passes, one by one."""

    compute_ranks: tuple[int, ...] = ()
    passes: tuple[Pass, ...] = ()


class TransferTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a transfer of the plan took; the mean of its repetitions. The size is the same for all."""

    sender: int
    receiver: int
    seconds: float


class ValidationResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests measured. `compute_s`: GEMM by rank, in turns that all ranks took at about the same time. The
    references are what the same tests take on healthy
    machines, where that is known; else 0, and results are compared with each other only."""

    compute_s: dict[int, tuple[float, ...]] = {}
    transfers: tuple[TransferTime, ...] = ()
    compute_reference_s: float = 0.0
    transfer_reference_s: float = 0.0


class SlowNodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A slow way from one node to another, by node rank; `ratio` to the median of its like."""

    sender: int
    receiver: int
    ratio: float


class ValidationVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is slow. `nodes` are node ranks: those of slow ranks, and of links where all of a node's are slow; a slow
    link between two nodes names no node."""

    slow_ranks: tuple[int, ...] = ()
    slow_links: tuple[SlowNodeLink, ...] = ()
    nodes: tuple[int, ...] = ()
    reason: str
    evidence: tuple[str, ...] = ()
