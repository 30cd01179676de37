"""The decisions about a job that is itself a run of checks: asked for by a person, or a test of suspects.

It has no incidents. A node that dies of the checks is one of their results, and the others go on.
"""

from __future__ import annotations

from holdfast.events import DeadlinePassed, NodeDeparted, NodeLost
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.generation import expect_first_step_if_started
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.members import departure
from holdfast_controller.plan.phase import LIVE, Awaited, JobOutcome, Starting
from holdfast_controller.plan.transitions import become_completed, become_stopping

DONE = "the checks have finished on every remaining node"


def node_gone(draft: JobDraft, event: NodeLost | NodeDeparted) -> None:
    """Go on without a node that was lost or shut down; complete the run if all other nodes have answered."""
    if failure := departure(draft, event):
        go_on_without(draft, failure, vacated(draft.state, failure.node))
        if is_over(draft.state):
            become_completed(draft, DONE)


def vacated(state: JobState, node: str | None) -> JobState:
    return state.update(members=tuple(it if it and it.node != node else None for it in state.members))


def go_on_without(draft: JobDraft, failure: Failure, left: JobState) -> None:
    """Give the lost node back and continue as `left`; fail if no node is left."""
    lost = draft.state.member(failure.node)
    assert lost is not None
    draft.release((lost,), failure.text)
    draft.state = left
    if not left.nodes:
        become_stopping(draft, JobOutcome.FAILED, failure.text)
    elif isinstance(left.phase, Starting) and left.phase.started_at is None:
        # The ranks of all nodes that are left may have started.
        expect_first_step_if_started(draft)


def is_over(state: JobState) -> bool:
    return isinstance(state.phase, LIVE) and state.are_all(state.phase.finished)


def overdue(draft: JobDraft, passed: DeadlinePassed) -> None:
    """Fail the run: its ranks did not start, or did not end, in time."""
    waited_s, missing = passed.waited_s, passed.missing_nodes
    if passed.awaited == Awaited.FIRST_STEP:
        text = f"the checks did not finish within {waited_s:.0f} s"
    else:
        silent = "no node started its" if set(missing) == set(draft.state.nodes) else f"{missing[0]} did not start its"
        text = f"{silent} ranks within {waited_s:.0f} s"
    become_stopping(draft, JobOutcome.FAILED, text)
