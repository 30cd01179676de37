"""A rung of the ladder as it is chosen, with its reason, and what limits the choice."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import FULL, suite_for
from holdfast_controller.plan.doubt.doubt_records import PastBadNumbers
from holdfast_controller.plan.incident.incident import Alert, Failure, Rung
from holdfast_controller.plan.record.finding import RecordFinding

INSPECTIONS, CHECKS, REPLAYS, HANGS, FAILURES = "inspections", "stop_time_checks", "replay", "hangs", "failures"
FAIL_SLOW, RECORD, WARM_UP = "fail_slow", "record", "warm_up"
"""Mechanisms that can justify an eviction."""


class RungChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The rung that is taken next, and the nodes that it concerns."""

    rung: Rung
    reason: str
    nodes: tuple[str, ...] = ()
    one_of: bool = False
    """True if at least one of the nodes is at fault and it is not known which: they are tested beside training."""
    asks_first: bool = False
    """True if the nodes leave only once others are granted in their place."""
    is_convicted: bool = False
    """True if the nodes leave for others even if they cannot be tested then."""
    is_accusation: bool = False
    """True if the only evidence against the nodes is what ranks did or printed."""
    link: tuple[str, str] | None = None
    """The broken connection that the nodes are evicted for."""
    mechanism: str = FAILURES
    suite: str = ""
    pause_s: float = 0.0
    """Limit of a wait for `nodes`; a wait for a service elsewhere has none."""
    evidence: tuple[str, ...] = ()


class LadderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the job that limits the choice of a rung."""

    members: frozenset[str]
    alerts: tuple[Alert, ...] = ()
    """Alerts of the failed node that often pass by themselves; together with a crash they count."""
    hints: tuple[Alert, ...] = ()
    """Hints about the nodes that may have failed: alone they prove nothing."""
    doubted: tuple[Failure, ...] = ()
    """Failures of other nodes that alerts are sure about, and that wait to be compared."""
    can_ask: bool = True
    """False while the job is tested, or has requested nodes: a request for others would replace that one."""
    can_check: bool = True
    can_roll_back: bool = False
    """True if the code that failed is not known to be good, and other code is."""
    is_all_of_code: bool = True
    """True if no failure of the incident is older than that code."""
    code_failures: int = 0
    """Earlier incidents of that code, while it was not known to be good."""
    can_replay: bool = False
    may_guess: bool = True
    """False if the failure shows that a group was evicted for it in vain."""
    has_accused_enough: bool = False
    """True if the job has cost the pool as many nodes as it may by what its ranks did."""
    may_exchange: bool = False
    """True if a node that its own rank accuses may leave before any test, for one that is free."""
    awaits_tests: bool = False
    """True if a node is out for what ranks of the job did, and its tests may not be over."""
    record: RecordFinding | None = None
    """The finding in the record of the failed node, over incidents and jobs."""
    past_bad_numbers: tuple[PastBadNumbers, ...] = ()
    """Those of earlier incidents, lately, that nothing has explained."""
    restarts_max: int | None = None
    """Restarts that the job's --max-restarts leaves to this incident; None: it has no such bound."""


def are_some_left(options: LadderOptions, tried: frozenset[str]) -> bool:
    """Return True if some members are not among those that were tried."""
    # Usually no node has joined since: the identity check then saves comparing ten thousand nodes per failed rank.
    return tried is not options.members and not options.members <= tried


def unfit_leave(failure: Failure) -> RungChoice:
    """Return the rung that evicts nodes which failed the warm-up."""
    choice = RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=failure.group, mechanism=WARM_UP)
    asks_first = not failure.is_urgent
    return msgspec.structs.replace(choice, one_of=failure.is_guess, asks_first=asks_first, link=failure.link)


def accused_leaves(failure: Failure, why: str) -> RungChoice:
    """Return the rung that exchanges a node accused by its own rank, and tests it beside training. `why` ends the
    reason."""
    assert failure.node is not None
    return RungChoice(
        rung=Rung.EVICT,
        reason=f"{failure.text}; {failure.node} is tested beside training, {why}",
        nodes=(failure.node,),
        one_of=True,
        asks_first=True,
        is_accusation=True,
    )


def group_leaves(failure: Failure, *, asks_first: bool = False) -> RungChoice:
    """Return the rung that evicts a group of nodes, one of which blocks the others."""
    return RungChoice(
        rung=Rung.EVICT,
        reason=f"{failure.text}; one of {', '.join(failure.group)} blocks the others",
        nodes=failure.group,
        one_of=True,
        asks_first=asks_first,
        mechanism=HANGS,
    )


def checks_for(failure: Failure, hints: tuple[Alert, ...]) -> RungChoice:
    """Return stop-time checks for what the failure and the newest hint point at."""
    suite = suite_for(failure.symptom_name)
    if not hints:
        return RungChoice(rung=Rung.CHECKS, reason=failure.text, suite=suite)
    hint = hints[-1]
    return RungChoice(
        rung=Rung.CHECKS,
        reason=f"{failure.text}; a reason to test first: {hint.text}",
        suite=suite if suite == suite_for(hint.symptom) else FULL,
        evidence=tuple(known.event for known in hints),
    )
