"""The rungs that follow bad numbers (ADR 10)."""

from __future__ import annotations

from holdfast.engines.checks.suites import suite_for
from holdfast.symptoms import Symptom
from holdfast_controller.plan.doubt.doubt_records import PastBadNumbers
from holdfast_controller.plan.incident.bad_numbers.recurring import calls_for_replay
from holdfast_controller.plan.incident.incident import BadStep, Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice, accused_leaves, are_some_left

EXCHANGED_TOGETHER_MAX = 8
"""Maximum number of nodes of a job that are exchanged together because one of them may compute wrongly."""


def for_bad_numbers(incident: Incident, failure: Failure, bad_step: BadStep, options: LadderOptions) -> RungChoice:
    """Return the rung for bad numbers: tests, the code's rollback, a comparison of machines, exchanges, the end."""
    if bad_step.certified is None:
        reason = f"{failure.text}; no step is certified as clean, so there is none to restore"
        return RungChoice(rung=Rung.STOP, reason=reason)
    if options.can_check and are_some_left(options, incident.checked):
        return RungChoice(rung=Rung.CHECKS, reason=failure.text, suite=suite_for(failure.symptom_name))
    earlier = [known for known in incident.bad_steps if known.generation != bad_step.generation]
    if options.can_roll_back and (earlier or options.code_failures):
        why = "bad numbers again, no machine is known to be at fault, and the code is new"
        return RungChoice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    may_leave = failure.node in options.members and options.may_exchange and not failure.is_irreplaceable
    # At one step each time it may be the data of its ranks.
    known_before: tuple[BadStep | PastBadNumbers, ...] = tuple(earlier)
    if failure.symptom is Symptom.NAN:
        # Across incidents the data may have been others: a jump is too often theirs.
        known_before = (*earlier, *options.past_bad_numbers)
    if may_leave and any(known.node == failure.node and known.step != bad_step.step for known in known_before):
        return accused_leaves(failure, "as only its ranks had such numbers before as well")
    is_again = bool(earlier) or calls_for_replay(options.past_bad_numbers)
    if is_again and options.can_replay and are_some_left(options, incident.replayed):
        return RungChoice(rung=Rung.REPLAY, reason=failure.text)
    # A generation before had come past it.
    was_clean = any(known.generation < bad_step.generation and known.step > bad_step.step for known in earlier)
    if was_clean and may_leave:
        return accused_leaves(failure, f"as step {bad_step.step} was clean before, with the same data and code")
    if any(known.step == bad_step.step for known in earlier):
        why = f"bad numbers at the same step {bad_step.step} twice"
        suspects = _members_each_time(bad_step, earlier, options) if was_clean else ()
        if suspects and options.may_exchange and not failure.is_irreplaceable:
            return _all_leave(failure, suspects, f"{why}, though it was clean before")
        are_known = bool(bad_step.members) and all(known.members for known in earlier)
        if was_clean and are_known and not suspects:
            fault = "no machine was part of the job each time: data, code or settings are at fault"
        elif was_clean:
            fault = "a machine may be at fault, as the step was clean before, and none is known to be"
        else:
            fault = "data, code or settings are at fault, no machine"
        return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; {why}: {fault}")
    return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)


def _members_each_time(bad_step: BadStep, earlier: list[BadStep], options: LadderOptions) -> tuple[str, ...]:
    """Return the nodes that were part of the job each time, if these are known."""
    each_time = options.members.intersection(bad_step.members, *(known.members for known in earlier))
    return tuple(node for node in bad_step.members if node in each_time)


def _all_leave(failure: Failure, nodes: tuple[str, ...], why: str) -> RungChoice:
    """Return the last answer before the job would end: it goes on without any node that may compute wrongly."""
    return RungChoice(
        rung=Rung.EVICT,
        reason=f"{failure.text}; {why}: one of {', '.join(nodes)} may compute wrongly, and they are tested beside "
        "training",
        nodes=nodes,
        one_of=True,
        asks_first=True,
        is_accusation=True,
    )
