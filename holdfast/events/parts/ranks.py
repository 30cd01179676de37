"""Facts about single ranks: their end, their progress, the place where they are stuck."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from holdfast.events.parts.scalars import Count, Moment, Name, Seconds, Step


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that failed in tests."""

    node: Name
    symptom: str
    reason: str


class RankReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of a rank in a replay, from step `first` to `last`; both are -1 if it made no step."""

    first: Step
    last: Step
    digest: str
    """Digest of all results."""
    digests: tuple[str, ...] = ()
    """`digests[i]` is of all results up to the end of step `first + i * every`."""
    every: Count = 1
    bad_step: Step | None = None
    """First step with a number that is not finite; None: there was none."""


class FoldedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a stop-time test that passed or was skipped, within the result that ends its node's run. The fields
    are those of `diagnostic_result`."""

    test: str
    status: Literal["passed", "skipped"] = "passed"
    peers: tuple[Name, ...] = ()
    round: Count = 0
    device: str = ""
    value: float | None = None
    needed: float | None = None
    unit: str = ""
    digest: str = ""
    hardware: str = ""
    program: str = ""
    took_s: float = 0.0
    detail: str = ""
    done: Count = 0


class RankException(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Python exception that ended a rank."""

    type: str
    message: str
    traceback: str
    storage: str = ""
    """File systems of other machines on which the failed operation was, by the mounts of the node; "": none."""

    @property
    def headline(self) -> str:
        """The first line of the message with content: torch frames some messages with lines of `=`."""
        lines = (line.strip() for line in self.message.splitlines())
        return next((line for line in lines if any(map(str.isalnum, line))), "")


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A rank and its process."""

    rank: Count
    pid: Count


STEPS_AHEAD = 20
"""Steps of other ranks after which a rank without a step makes none: those that train together differ by one or two."""


class RankProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a rank by its ledger."""

    rank: Count
    step: Step
    """Last completed step, -1 before any."""
    phase: str
    phase_since: Moment | None = None
    steps_done: Count = 0
    since_change_s: Seconds = 0.0
    """Seconds without any step, phase or collective, by the clock of its node."""
    since_step_s: Seconds = 0.0
    """Seconds without a step, by the clock of its node."""
    collectives: Count = 0
    """Collectives that it has entered."""
    in_collective: Count = 0
    """Number of the rank's threads that are inside a collective now."""
    collective: str = ""
    """The newest of these collectives."""
    has_ended: bool = False
    """True once the script has ended by itself."""
    is_stopped: bool = False
    """A signal has stopped its process (state T), or one that it has started."""


class CodePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processes of one kind at the same place in the code."""

    kind: str
    count: Count
    stack: tuple[str, ...] = ()
    """Innermost call first, shortened."""
    waits_for: str = ""
    ranks: tuple[Count, ...] = ()
    """The first of the ranks that the processes belong to."""
    is_usual: bool = False
    """True if enough processes are there for a usual place to wait."""


class HangSuspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that hold a job up; if several, one of them, without proof which."""

    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    reason: str
    confidence: float
    evidence: tuple[str, ...] = ()
    """Lines that can be checked by hand."""


class _OfRank(Protocol):
    @property
    def rank(self) -> int: ...


def require_ranks(world_size: int, of_ranks: Iterable[_OfRank]) -> None:
    """Raise ValueError if a rank is not one of `world_size`; 0: that is not known."""
    highest = max((it.rank for it in of_ranks), default=0)
    if world_size and highest >= world_size:
        raise ValueError(f"rank {highest} in a job of {world_size}")
