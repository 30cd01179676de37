"""The decision about a job that hangs (docs/adr/0020-hangs.md).

A machine that itself shows a fault is evicted: a process on it is stuck in the kernel, or cannot be read. So is a
group that differs from all other ranks, once other nodes can replace it (ByteRobust §5.1). Any other hang may be caused
by the script: the job is restarted, and a second hang shows whether it follows a node. Where a signal stopped the
processes no machine is ever blamed: a script can send it to itself, and devices send none.
"""

from __future__ import annotations

import msgspec

from holdfast.events import HangFound, Withheld
from holdfast.events.summaries import since_step
from holdfast.settings.findings.hang import HangPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.doubt import hints
from holdfast_controller.plan.doubt.group_guesses import refute
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.incident.closing import passed_step
from holdfast_controller.plan.incident.incident import Failure, RankError, Rung
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.incident.rung_choice import HANGS
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE
from holdfast_controller.plan.record.noting import has_hung, note_group

SIGNATURE = "hang"
"""Common to all hangs: one that recurs at the same step on other nodes follows the job."""

USUAL = ("init", "train")
"""Phases that a script is in without naming one."""


def hang_found(draft: JobDraft, event: HangFound) -> None:
    """Handle a hang: open an incident, or go on with the open one, and take a rung of the ladder."""
    state = draft.state
    if event.generation != state.generation or not isinstance(state.phase, LIVE):
        return
    failure = _failure(state, event, draft.rules)
    if draft.rules.mechanisms.hangs == "observe":
        rung = Rung.EVICT if failure.suspects else Rung.REATTEMPT
        draft.emit(Withheld, mechanism=HANGS, rung=rung, node=failure.node, reason=failure.text)
        return
    draft.state = hints.with_idle_devices(state, event, draft.now, draft.rules.ladder)
    passed_step(draft, event.step)
    refute(draft, failure)
    named = _named(state, event)
    is_known = any(has_hung(draft, node, failure.generation) for node in named)
    if len(named) > 1:
        note_group(draft, failure, named)
    handle_failure(draft, msgspec.structs.replace(failure, is_known_hang=is_known))


def _named(state: JobState, event: HangFound) -> tuple[str, ...]:
    """Return the nodes that later hangs are compared with; none if most are named, or a signal stopped a process."""
    nodes = tuple(node for node in event.nodes if node in state.nodes)
    return nodes if 2 * len(nodes) <= len(state.nodes) and not event.is_by_signal else ()


def _failure(state: JobState, event: HangFound, rules: Rules) -> Failure:
    policy = rules.hang
    convincing = tuple(node for node in event.group if node in state.nodes)
    named = convincing or tuple(node for node in event.nodes if node in state.nodes)
    is_named = bool(named) and event.confidence >= policy.evict_confidence_min
    # Devices do not send signals. A script may stop itself on any machine, so none is blamed for it.
    is_of_node = is_named and not event.is_by_signal
    is_certain = is_of_node and event.is_machine and _may_go(state, named, rules.ladder.evictions_share_max, policy)
    # Confidence is low because the members of the group look alike; that one of them blocks the others is certain.
    is_likely = len(named) > 1 and event.confidence >= policy.group_confidence_min
    is_group = is_likely and _may_go(state, named, policy.group_share_max, policy)
    step = max(event.step, state.step)
    return Failure(
        symptom=Symptom.HANG,
        named=event.symptom,
        root=Root.INFRASTRUCTURE if is_certain else Root.UNKNOWN,
        generation=state.generation,
        step=step,
        text=_describe(event),
        node=named[0] if is_of_node and len(named) == 1 else None,
        rank=event.ranks[0] if len(event.ranks) == 1 else None,
        evidence=(event.id,),
        error=RankError(
            generation=state.generation,
            signature=SIGNATURE,
            step=step,
            on_first_step=False,
            traceback="\n".join((event.summary, *event.evidence)),
            exit_code=1,
        ),
        suspects=named if is_certain else (),
        group=named if is_group else (),
        is_convincing=is_group and bool(convincing) and not is_certain,
    )


def _may_go(state: JobState, nodes: tuple[str, ...], share_max: float, policy: HangPolicy) -> bool:
    """Return True if these nodes may leave at once: others stay, and the number that leaves is plausible."""
    some_are_left = len(nodes) < len(state.nodes) or len(state.nodes) == 1
    return some_are_left and len(nodes) <= max(policy.suspects_max, int(share_max * state.spec.nnodes))


def _describe(event: HangFound) -> str:
    summary = event.summary or "no rank or node is named"
    phase = f" in phase {event.phase}" if event.phase not in USUAL else ""
    return f"no progress for {event.still_s:.1f} s{phase} {since_step(event.step)}; {summary}"
