"""The recovery ladder: which rung a failure asks for, and why. ByteRobust §4 (Fig. 5), the part of it built so far.

node lost, or silent about its start        -> evict it, claim a standby, restart
the script's own error, code not yet good   -> back to the last good version
the script's own error, seen twice          -> stop, with the traceback
rank killed, or an infrastructure error     -> restart in place; again on the same node -> evict it
the same though no node was there each time -> it follows the job: restart in place, evict nobody, soon stop
rank that lost a partner                    -> restart in place; nobody is blamed
bad numbers                                 -> restart in place from a certified step; again at the same step -> stop
too many attempts within one incident       -> stop
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.config import LadderPolicy
from holdfast_controller.classify import FIRST_HAND_OF_NODE, OF_USER_CODE
from holdfast_controller.state import Incident, RankError, Shown, Spoiled, Symptom

TRAITS_MAX = 16
"""Of an incident; those that were shown last."""

EVICTED_FOR_TRAIT_MAX = 2
"""Where all nodes of a job show the same each time, the third to go would be no better a guess."""


class Rung(StrEnum):
    """What to do about a failure, from mild to severe."""

    REATTEMPT = "reattempt"
    ROLLBACK = "rollback"
    REPLACE = "replace"
    EVICT = "evict"
    STOP = "stop"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong in one generation of a job."""

    symptom: Symptom
    generation: int
    step: int
    text: str
    node: str | None = None
    rank: int | None = None
    error: RankError | None = None
    spoiled: Spoiled | None = None

    @property
    def user_error(self) -> RankError | None:
        """The error, if it is the script's own."""
        return self.error if self.symptom in OF_USER_CODE else None

    @property
    def trait(self) -> str | None:
        """By what the same failure of a node is known on another one."""
        return self.error.trait if self.error and self.symptom in FIRST_HAND_OF_NODE else None


def blame(incident: Incident, failure: Failure, members: frozenset[str]) -> Incident:
    """The incident with this failure counted, at most once for each node and generation. `members`: the job's nodes."""
    if failure.symptom not in FIRST_HAND_OF_NODE or failure.node is None:
        return incident
    if failure.trait:
        # Of an earlier generation's nodes those that are left count, and the one that speaks: rather one too many.
        here = members | {failure.node}
        seen = incident.shown.get(failure.trait, Shown(by={}, each_time=here))
        by = seen.by | {failure.generation: seen.by.get(failure.generation, frozenset()) | {failure.node}}
        shown = incident.shown | {failure.trait: Shown(by=by, each_time=seen.each_time & here)}
        newest = sorted(shown.items(), key=lambda entry: max(entry[1].by))[-TRAITS_MAX:]
        incident = msgspec.structs.replace(incident, shown=dict(newest))
    if incident.blamed_generation.get(failure.node) == failure.generation:
        return incident
    return msgspec.structs.replace(
        incident,
        blamed={**incident.blamed, failure.node: incident.blamed.get(failure.node, 0) + 1},
        blamed_generation={**incident.blamed_generation, failure.node: failure.generation},
    )


def choose(
    incident: Incident, failure: Failure, policy: LadderPolicy, *, can_roll_back: bool = False
) -> tuple[Rung, str]:
    """The rung for `failure`, which `incident` has already counted by `blame`, and the reason in words.

    `can_roll_back`: it ran code that is not known to be good, and there is other code that is.
    """
    if failure.symptom is Symptom.NODE_DEPARTED:
        return Rung.REPLACE, failure.text
    if failure.symptom in (Symptom.NODE_LOST, Symptom.START_TIMEOUT) and failure.node:
        return Rung.EVICT, failure.text
    if failure.user_error and can_roll_back:
        return Rung.ROLLBACK, failure.text
    if failure.user_error and incident.user_error and (why := _comes_again(incident.user_error, failure.user_error)):
        return Rung.STOP, f"{failure.text}; {why}"
    if failure.spoiled and (why := _beyond_mending(incident.spoiled, failure.spoiled)):
        return Rung.STOP, f"{failure.text}; {why}"
    if failure.symptom not in FIRST_HAND_OF_NODE or failure.node is None:
        return Rung.REATTEMPT, failure.text
    seen = incident.shown.get(failure.trait or "")
    if seen and _follows_the_job(incident, failure.trait, seen):
        if len(seen.by) < policy.same_failures_max:
            return Rung.REATTEMPT, failure.text
        nodes = sorted(frozenset().union(*seen.by.values()))
        return Rung.STOP, (
            f"{failure.text}; the same at the same step in {len(seen.by)} generations, on "
            f"{', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}: it follows the job, and no machine is at fault"
        )
    same = sum(failure.node in nodes for nodes in seen.by.values()) if seen else 0
    times = max(incident.blamed.get(failure.node, 0), same)
    if times >= policy.failures_of_node_max:
        return Rung.EVICT, f"{failure.text}; {failure.node} failed {times} times within one incident"
    return Rung.REATTEMPT, failure.text


def is_exhausted(incident: Incident, policy: LadderPolicy) -> bool:
    """Whether no more restarts are left to it."""
    return incident.attempts >= policy.attempts_max


def _follows_the_job(incident: Incident, trait: str | None, seen: Shown) -> bool:
    """No one node was there each time; or enough had to go for it."""
    evicted = sum(evicted.trait == trait for evicted in incident.evicted.values())
    return not seen.each_time or evicted >= EVICTED_FOR_TRAIT_MAX


def _beyond_mending(earlier: tuple[Spoiled, ...], now: Spoiled) -> str:
    if now.certified is None:
        return "no step is known to be clean, so there is none to go back to"
    if any(known.step == now.step and known.generation != now.generation for known in earlier):
        return f"bad numbers at the same step {now.step}, twice: data, code or settings, and no machine"
    return ""


def _comes_again(earlier: RankError, now: RankError) -> str:
    if earlier.generation == now.generation:
        return ""
    if earlier.on_first_step and now.on_first_step:
        return "the script's own error on its first step, twice running"
    if earlier.signature == now.signature and earlier.step == now.step:
        return f"the same error of the script at the same step {now.step}, twice running"
    return ""
