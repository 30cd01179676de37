"""What went wrong with a job, what is known of it, and what was done about it so far. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.symptoms import Root, Symptom


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended: what is needed to see that it comes again, and to tell people."""

    generation: int
    signature: str
    step: int
    on_first_step: bool
    traceback: str
    exit_code: int

    @property
    def trait(self) -> str:
        """What is the same wherever the same failure comes again, on any node."""
        return f"{self.signature} at step {self.step}"


class Rung(StrEnum):
    """What to do about a failure, from mild to severe."""

    REATTEMPT = "reattempt"
    WAIT = "wait"
    ROLLBACK = "rollback"
    REPLACE = "replace"
    CHECKS = "stop_time_checks"
    REPLAY = "replay"
    EVICT = "evict"
    STOP = "stop"


class Spoiled(msgspec.Struct, frozen=True, kw_only=True):
    """Where numbers of a generation went bad, and the newest step that was known to be clean then; None: none was."""

    generation: int
    step: int
    certified: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong in one generation of a job. `evidence` are the ids of the events that tell of it.

    `named` is the symptom in the terms of `holdfast.symptoms`, where more is known than `symptom` says;
    `root` where
    the cause lies, as far as that can be told. `suspects` are machines that speak against themselves in a hang; of
    `group` one holds the others up, or makes the job slow, and nobody can tell which.
    """

    symptom: Symptom
    generation: int
    step: int
    text: str
    named: str = ""
    root: Root = Root.UNKNOWN
    evidence: tuple[str, ...] = ()
    node: str | None = None
    rank: int | None = None
    error: RankError | None = None
    spoiled: Spoiled | None = None
    suspects: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    @property
    def shown_as(self) -> str:
        """The symptom by its most telling name."""
        return self.named or self.symptom


class RungTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A rung that was taken within an incident, on what evidence, and which would have come `next`."""

    at: datetime
    generation: int
    rung: Rung
    reason: str
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    next: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a node raised beside training. `stands`: it has not been cleared."""

    at: datetime
    check: str
    device: str
    kind: str = ""
    symptom: str
    confidence: str
    text: str
    event: str
    stands: bool = True


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes were seen to fail in one and the same way, by generation; who was part of the job each time."""

    by: dict[int, frozenset[str]]
    each_time: frozenset[str]


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was held at `epoch` and evicted for failures of this trait."""

    epoch: int
    trait: str


class FailedLink(msgspec.Struct, frozen=True, kw_only=True):
    """Two nodes that could not reach each other; of those that went for it, at which epoch each was held."""

    ends: tuple[str, str]
    evicted: dict[str, int]


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident. It ends when the job has gone past the step at which it failed, or with the job.

    One of bad numbers (`spoiled`: the first ones of each generation) ends only when that step is certified.

    `blamed` counts, for each node, the generations of this incident that failed there first hand; `shown` has the
    traits of these failures, and `evicted` the nodes that had to go for them. `links` are connections that stop-time
    checks found broken, and for which nodes had to go. `checked` are the nodes whose stop-time
    checks in this incident found nothing, `replayed` those that a replay has compared; `untrained` are the generations
    of both. `attempts` counts restarts; behind the generations in `paused` a service elsewhere was waited for
    first. `taken` are the rungs so far; the last of very many.
    """

    id: str
    opened_at: datetime
    symptom: Symptom
    failed_step: int
    attempts: int = 0
    paused: tuple[int, ...] = ()
    blamed: dict[str, int] = {}
    blamed_generation: dict[str, int] = {}
    shown: dict[str, Recurrence] = {}
    evicted: dict[str, Evicted] = {}
    links: tuple[FailedLink, ...] = ()
    user_error: RankError | None = None
    spoiled: tuple[Spoiled, ...] = ()
    checked: frozenset[str] = frozenset()
    replayed: frozenset[str] = frozenset()
    untrained: frozenset[int] = frozenset()
    taken: tuple[RungTaken, ...] = ()
    named: str = ""
    summary: str = ""

    @property
    def shown_as(self) -> str:
        """The symptom by its most telling name."""
        return self.named or self.symptom

    @property
    def restarts(self) -> int:
        """Those for what went wrong in the job: what waits for others says nothing of it."""
        return self.attempts - len(self.paused)
