"""What is known of single ranks: how they ended, how far they are, where they are stuck."""

from __future__ import annotations

import msgspec

from holdfast.events.parts.scalars import Count, Moment, Name, Step


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that speaks against itself in tests, and how."""

    node: Name
    symptom: str
    reason: str


class RankReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank computed in a replay, from step `first` to `last`; `digest` is of all that.

    `digests[i]` is of all up to the end of step `first + i * every`. `bad_step` is the first step with a number that is
    not finite; None: there was none. A rank that made no step has -1 for both.
    """

    first: Step
    last: Step
    digest: str
    digests: tuple[str, ...] = ()
    every: Count = 1
    bad_step: Step | None = None


class RankException(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Python exception that ended a rank."""

    type: str
    message: str
    traceback: str


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A rank and its process."""

    rank: Count
    pid: Count


class RankProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a rank stands by its ledger: `step` is the last completed one, -1 before any.

    `since_change_s` is how long it has noted nothing, no step, phase or collective; `since_step_s` how long no step,
    both by the clock of its node. `collectives` counts those that it has entered, `in_collective` its threads that are
    inside one now, the newest of which is `collective`. `has_ended`: its script has ended by itself.
    """

    rank: Count
    step: Step
    phase: str
    phase_since: Moment | None = None
    steps_done: Count = 0
    since_change_s: float = 0.0
    since_step_s: float = 0.0
    collectives: Count = 0
    in_collective: Count = 0
    collective: str = ""
    has_ended: bool = False


class StandingPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processes of one kind that stand at the same place. `stack` is innermost first, shortened; `ranks` the first of
    those that they belong to. `is_usual`: so many stand there that it is where one waits."""

    kind: str
    count: Count
    stack: tuple[str, ...] = ()
    waits_for: str = ""
    ranks: tuple[Count, ...] = ()
    is_usual: bool = False


class HangSuspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that hold a job up; several: one of them, and nothing says which. `evidence` can be checked by hand."""

    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    reason: str
    confidence: float
    evidence: tuple[str, ...] = ()
