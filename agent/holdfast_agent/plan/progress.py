"""Decisions on the ranks' progress as their ledgers show it: the first step, and regular progress events."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.events import FirstStep, Progress, StepsNumbered
from holdfast.events.parts.ranks import STEPS_AHEAD, RankProgress
from holdfast_agent.plan.cut_off import end_ranks_after_lease
from holdfast_agent.plan.inputs import Observed
from holdfast_agent.plan.node_state import Crew, RankStatus
from holdfast_agent.plan.plan_draft import PlanDraft

PROGRESS_EVERY_S = 0.9
"""Slightly less than the interval between two reads of the ledgers, so that no read is skipped."""


_CERTAIN = ("script", "framework", "restored", "", "optimizer")
"""Sources of step numbers, the best first; "" stands for those that do not show the first step."""


def observed(draft: PlanDraft, seen: Observed) -> None:
    """Note progress, and report what is new."""
    crew = draft.state.crew
    if crew is None or not crew.pids or draft.state.stop is not None:
        return
    steps = tuple(seen.statuses[rank].steps_done if rank in seen.statuses else 0 for rank in crew.ranks)
    if steps != draft.state.progress:
        draft.update(progress=steps, progress_at=draft.now)
    if crew.trains and not crew.stepped and _all_step_but_others(crew, seen):
        _first_step(draft, crew, seen)
    elif crew.stepped and not crew.numbered:
        _note_numbers(draft, crew, seen)
    last = draft.state.progress_emitted_at
    # A time to come is one from before the clock was put back.
    is_due = last is None or not 0 <= (draft.now - last).total_seconds() < PROGRESS_EVERY_S
    if crew.trains and is_due and seen.statuses:
        draft.update(progress_emitted_at=draft.now)
        job = crew.order.placement.job if crew.order.placement else None
        draft.emit(
            Progress,
            crew,
            incident=None,
            ranks=_progress_of(crew, seen, draft.now),
            world_size=job.nnodes * job.nproc_per_node if job else 0,
            nproc_per_node=job.nproc_per_node if job else 0,
            mesh=job.mesh if job else None,
        )
    end_ranks_after_lease(draft, seen.cut_off_s)


def _all_step_but_others(crew: Crew, seen: Observed) -> bool:
    """Return True once all ranks have made a step, apart from those that make none: others are far ahead of them."""
    if any(rank not in seen.statuses for rank in crew.ranks):
        return False
    steps = [seen.statuses[rank].steps_done for rank in crew.ranks]
    return all(steps) or max(steps, default=0) >= STEPS_AHEAD


def _first_step(draft: PlanDraft, crew: Crew, seen: Observed) -> None:
    draft.remember(crew=msgspec.structs.replace(crew, stepped=True))
    statuses = [seen.statuses[rank] for rank in crew.ranks if seen.statuses[rank].steps_done]
    # What one rank knows of the step at which the job goes on holds for those that know less: it may have read for all.
    best = min(map(_knowledge, statuses))
    knowing = [status for status in statuses if _knowledge(status) == best]
    # A script may number its steps in any way, but never below 0.
    first = max(0, min(_first_of(status) for status in knowing))
    # Ranks count these from 0; the number of the first one follows in a separate event.
    is_by_log = knowing[0].step_source == "log"
    completed = max(status.first_step_at or draft.now for status in statuses)
    draft.emit(
        FirstStep,
        crew,
        step=first,
        completed_at=completed,
        is_numbered=all(status.is_numbered for status in knowing),
        step_source="optimizer" if is_by_log else knowing[0].step_source,
        step_source_name="" if is_by_log else knowing[0].step_source_name,
        is_start_unknown=is_by_log or not knowing[0].is_start_known,
    )


def _note_numbers(draft: PlanDraft, crew: Crew, seen: Observed) -> None:
    for status in seen.statuses.values():
        if status.step_source == "log" and status.first is not None:
            draft.remember(crew=msgspec.structs.replace(crew, numbered=True))
            draft.emit(StepsNumbered, crew, incident=None, step=status.first, step_source_name=status.step_source_name)
            return


def _knowledge(status: RankStatus) -> int:
    """Return how well a rank knows at which step it goes on, best first. To know that something was restored, but not
    which step, is more than to have restored nothing.
    """
    if not status.is_start_known:
        return _CERTAIN.index("restored") + 1
    return _CERTAIN.index(status.step_source) if status.step_source in _CERTAIN else len(_CERTAIN)


def _first_of(status: RankStatus) -> int:
    is_counted = status.first is None or status.step_source == "log"
    return status.step - status.steps_done + 1 if is_counted else status.first or 0


def _progress_of(crew: Crew, seen: Observed, now: datetime) -> tuple[RankProgress, ...]:
    return tuple(
        RankProgress(
            rank=rank,
            step=status.step,
            phase=status.phase,
            phase_since=status.phase_since,
            steps_done=status.steps_done,
            since_change_s=_since_s(status.changed_at, now),
            since_step_s=_since_s(status.stepped_at, now),
            collectives=status.collectives,
            in_collective=status.in_flight,
            collective=status.collective if status.in_flight else "",
            has_ended=status.has_ended,
            is_stopped=rank in seen.stopped,
        )
        for rank, status in sorted(seen.statuses.items())
        if rank in crew.ranks
    )


def _since_s(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
