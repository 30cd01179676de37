"""The ways into each phase of a job: each function builds the phase, emits the event and orders the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Set
from datetime import timedelta

from holdfast.engines.checks.suites import deadline_s
from holdfast.events import ChecksStarted, GenerationStarted, JobFinished, JobStopping, ReplayStarted, Suspension
from holdfast.events.parts.job import Grant
from holdfast_controller.plan.code.code_change import apply_pending
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.elastic import sizes
from holdfast_controller.plan.evidence.blame import judge_outage
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss.lost_steps import has_checkpoints
from holdfast_controller.plan.orders import leaving_order, orders_in_force
from holdfast_controller.plan.phase import (
    Awaited,
    Checking,
    ChecksProgress,
    Claiming,
    Ended,
    Ending,
    JobOutcome,
    JobPhase,
    OrderedWarmUp,
    Replaying,
    ReplayProgress,
    Running,
    Starting,
    Stopping,
    Waiting,
    WarmUpProgress,
)

POOL_ANSWERS_S = 5.0
"""Time for which a job that can go on as it is waits for the standby service to answer whether nodes are free."""

WARM_UP_ANSWER_S = 5.0
"""Time for the results of a warm-up to arrive, beyond its limit."""


def become_claiming(draft: JobDraft, leaving: Iterable[str], reason: str) -> None:
    """Take these nodes out of the job and request others. They are ordered to run nothing, should they still listen."""
    for node in leaving:
        state = draft.state
        member = state.member(node)
        if member:
            draft.order([leaving_order(state.update(ordered_by=draft.cause), member)])
        draft.update(members=tuple(None if held is member else held for held in state.members))
    if draft.state.vacancies and len(draft.state.spares) >= draft.state.vacancies:
        _fill_with_spares(draft, reason)
        return
    _claim(draft, reason)


def _claim(draft: JobDraft, reason: str, restart_reason: str = "") -> None:
    is_suspended = draft.state.is_suspended
    if draft.state.spec.is_elastic:
        draft.state = sizes.with_places(draft.state)
    request = draft.request_nodes(reason)
    deadline = None
    if request.at_least == 0:
        # It can go on as it is, also without the standby service.
        waits_s = request.last_call_s if request.enough else 0.0
        deadline = draft.deadline(Awaited.NODES, waits_s + POOL_ANSWERS_S)
    claiming = Claiming(claim=request.id, is_suspended=is_suspended, deadline=deadline, restart_reason=restart_reason)
    draft.state = draft.state.enter(claiming)


def fill(state: JobState, members: tuple[Grant | None, ...]) -> dict[str, object]:
    """Return what changes when these are the members: those who join a job that has run are newcomers to it."""
    joining = frozenset(member.node for member in members if member) - state.nodes.as_set
    return {"members": members, "newcomers": state.newcomers | joining if state.has_run else frozenset()}


def _fill_with_spares(draft: JobDraft, reason: str) -> None:
    spares = list(draft.state.spares)
    members = tuple(member or spares.pop(0) for member in draft.state.members)
    draft.state = draft.state.enter(Claiming(), spares=tuple(spares), **fill(draft.state, members))
    become_starting(draft, reason)


def become_starting(draft: JobDraft, restart_reason: str) -> None:
    """Start the next generation on all members, with the code that waits for a restart. An elastic job first takes in
    what is free.

    The ranks choose the newest complete checkpoint themselves: the disk may have a newer one than the catalogue. A
    limit holds until a generation has trained past it.
    """
    if sizes.may_grow(draft.state) and not isinstance(draft.state.phase, Claiming):
        _claim(draft, f"the job may have more nodes, and starts again anyway: {restart_reason}", restart_reason)
        return
    apply_pending(draft, restart_reason)
    state = draft.state
    limit = state.next_limit
    if state.incident:
        # Many nodes lost at once are answered by one restart: restarts are what an incident has a limit of.
        draft.update_incident(attempts=state.incident.attempts + 1)
    deadline = draft.deadline(Awaited.RANKS_STARTED, draft.rules.timeouts.start_s)
    ordered = _warm_up(draft)
    draft.state = draft.state.enter(
        Starting(deadline=deadline, ordered_at=draft.now, warm_up=_begun(draft, ordered) if ordered else None),
        ordered_warm_up=ordered,
        generation=state.next_generation,
        nodes_before=len(state.nodes),
        restore_at_most=limit,
        next_restore_at_most=None,
        is_past_limit=False,
        departed={},
        unfit={},
        restorable_step=_at_most(state.restorable_step, limit),
        free_nodes=None,
        is_resized=bool(state.nodes_before) and len(state.nodes) != state.nodes_before,
        doubts={node: noted for node, noted in state.doubts.items() if node in state.nodes},
        refuses_scratch=has_checkpoints(state) and not state.spec.allow_scratch,
    )
    started = draft.emit(
        GenerationStarted,
        reason=restart_reason,
        nodes=draft.state.nodes,
        world_size=state.spec.nnodes * state.spec.nproc_per_node,
        restore_step=draft.state.restorable_step,
        restore_at_most=limit,
        nproc_per_node=state.spec.nproc_per_node,
        persist_every=state.spec.persist_every,
        mesh=state.spec.mesh,
        submitted_at=state.submitted_at,
        vaults=tuple(_vault(member) for member in draft.state.members if member),
        racks=_racks(draft.state.members),
        purpose=state.purpose,
        code_version=state.code.version,
    )
    _order(draft, started.id)


def _warm_up(draft: JobDraft) -> OrderedWarmUp | None:
    """Return the warm-up of the next generation: before a job's first step, and when nodes have joined."""
    state, policy = draft.state, draft.rules.warm_up
    is_new = not state.has_run or bool(state.newcomers)
    if policy is None or not policy.runs or not state.spec.warm_up or state.purpose != "train" or not is_new:
        return None
    return OrderedWarmUp(limit_s=policy.limit_s, newcomers=state.newcomers if state.has_run else None)


def _begun(draft: JobDraft, ordered: OrderedWarmUp) -> WarmUpProgress:
    until = draft.now + timedelta(seconds=ordered.limit_s + WARM_UP_ANSWER_S)
    return WarmUpProgress(since=draft.now, until=until)


def become_running(draft: JobDraft, starting: Starting, *, makes_no_steps: bool = False) -> None:
    """Note that every node has made a step or goes on without, and how long that took from running ranks."""
    took_s = (draft.now - starting.started_at).total_seconds() if starting.started_at else 0.0
    if starting.ordered_at:
        # A clock may be set back, and a restart never costs less than nothing.
        begun_s = max(0.0, (draft.now - starting.ordered_at).total_seconds())
        draft.update(**{"restart_s" if draft.state.has_run else "start_s": begun_s})
    if draft.state.incident:
        draft.update(incident=judge_outage(draft.incident, draft.state.nodes.as_set))
    draft.state = draft.state.enter(
        Running(
            since=draft.now,
            step_seen_at=draft.now,
            makes_no_steps=makes_no_steps,
            finished=starting.finished,
            warm_up=_left(starting.warm_up),
        ),
        first_step_s=max(took_s, draft.state.first_step_s or 0.0),
        has_run=True,
        newcomers=frozenset(),
        unfit={},
        absent={},
    )


def _left(warm_up: WarmUpProgress | None) -> WarmUpProgress | None:
    return None if warm_up is None or warm_up.is_judged else warm_up


def become_checking(draft: JobDraft, failure: Failure, suite: str, reason: str) -> None:
    """Stop the ranks and test the members in their place."""
    timeouts = draft.rules.timeouts
    limit_s = timeouts.checks_s or timeouts.start_s + deadline_s(suite, len(draft.state.nodes))
    checks = ChecksProgress(suite=suite, began_at=draft.now, failure=failure)
    _leave_training(draft, Checking(checks=checks, deadline=draft.deadline(Awaited.CHECKS, limit_s)))
    started = draft.emit(ChecksStarted, suite=suite, nodes=draft.state.nodes, deadline_s=limit_s, reason=reason)
    _order(draft, started.id)


def become_replaying(draft: JobDraft, replay: ReplayProgress, reason: str, *, repeat: bool = False) -> None:
    """Stop the ranks and have each group of a phase train again."""
    limit_s = draft.rules.timeouts.replay_s
    _leave_training(draft, Replaying(replay=replay, deadline=draft.deadline(Awaited.REPLAY, limit_s)))
    nodes, plan = draft.state.nodes, replay.plan
    groups = (plan.members(group, replay.phase) for group in range(plan.groups))
    started = draft.emit(
        ReplayStarted,
        phase=replay.phase,
        groups=tuple(tuple(nodes[machine] for machine in group) for group in groups),
        mesh=plan.mesh,
        until_step=replay.settings.until,
        deadline_s=limit_s,
        repeat=repeat,
        reason=reason,
    )
    _order(draft, started.id)


def become_waiting(
    draft: JobDraft, failed_generation: int, pause_s: float, reason: str, nodes: tuple[str, ...] = ()
) -> None:
    """Stop the ranks, to start them again on the same nodes after a pause, or as soon as one of `nodes` is back."""
    draft.update_incident(paused=(*draft.incident.paused, failed_generation))
    draft.state = draft.state.enter(Waiting(deadline=draft.deadline(Awaited.PAUSE, pause_s), nodes=nodes))
    text = reason if nodes else f"trying again in {pause_s:g} s: {reason}"
    suspension = draft.emit(Suspension, pause_s=pause_s, keeps=nodes, reason=text)
    draft.order_idle(suspension.id)


def become_stopping(draft: JobDraft, outcome: JobOutcome, reason: str, exit_code: int = 1, traceback: str = "") -> None:
    """Stop all ranks for good; the job ends once they are gone on every node."""
    draft.emit(JobStopping, reason=reason)
    ending = Ending(outcome=outcome, reason=reason, exit_code=exit_code, traceback=traceback)
    deadline = draft.deadline(Awaited.RANKS_STOPPED, draft.rules.timeouts.start_s)
    draft.state = draft.state.enter(Stopping(ending=ending, deadline=deadline))
    draft.order_idle()
    end_when_gone(draft, set())


def end_when_gone(draft: JobDraft, nodes: Set[str]) -> None:
    """Note that `nodes` run no ranks of a stopping job any more; end it once none does."""
    phase = draft.state.phase
    assert isinstance(phase, Stopping)
    gone = phase.gone | nodes
    draft.update_phase(gone=gone)
    if draft.state.are_all(gone):
        become_stopped(draft)


def become_stopped(draft: JobDraft) -> None:
    """End a stopping job with the outcome of its `ending`, and give its nodes back."""
    phase, incident = draft.state.phase, draft.state.incident
    assert isinstance(phase, Stopping)
    ending = phase.ending
    draft.close_incident(ending.outcome, ending.reason)
    draft.state = draft.state.enter(Ended(outcome=ending.outcome, exit_code=ending.exit_code, at=draft.now))
    draft.emit(
        JobFinished,
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        reason=ending.reason,
        traceback=ending.traceback,
        incident=incident.id if incident else None,
    )
    draft.release_all(f"the job is {ending.outcome}")


def become_completed(draft: JobDraft, reason: str) -> None:
    """End the job as completed, and give its nodes back."""
    draft.order_idle()
    draft.state = draft.state.enter(Ended(outcome=JobOutcome.COMPLETED, exit_code=0, at=draft.now))
    draft.emit(JobFinished, outcome="completed", exit_code=0, reason=reason)
    draft.release_all("the job completed")


def _leave_training(draft: JobDraft, phase: JobPhase) -> None:
    """Enter a phase that uses up a generation number without training: the incident ignores how its ranks end."""
    generation = draft.state.next_generation
    if draft.state.incident:
        draft.update_incident(untrained=draft.state.incident.untrained | {generation})
    draft.state = draft.state.enter(phase, generation=generation)


def _order(draft: JobDraft, ordered_by: str) -> None:
    draft.update(ordered_by=ordered_by)
    draft.order(orders_in_force(draft.state))


def _vault(member: Grant) -> str:
    return f"{member.address}:{member.vault_port}" if member.vault_port else ""


def _racks(members: Iterable[Grant | None]) -> tuple[str, ...]:
    racks = tuple(member.rack for member in members if member)
    return racks if any(racks) else ()


def _at_most(step: int | None, limit: int | None) -> int | None:
    return None if step is not None and limit is not None and step > limit else step
