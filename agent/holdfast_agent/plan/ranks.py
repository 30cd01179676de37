"""Decisions on ranks: started, adopted from an earlier agent, exited, lost with the zygote, stopped."""

from __future__ import annotations

import msgspec

from holdfast.events import LOG_TAIL_CHARS_MAX, LogSignature, RanksFinished, RanksStarted, RanksStopped
from holdfast.events.parts.ranks import RankProcess
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.actions import Acknowledge, CloseStores
from holdfast_agent.plan.departure import depart
from holdfast_agent.plan.inputs import (
    LogAlertSeen,
    RankEnded,
    RanksRun,
    StartFailed,
    StopDone,
    StoreLost,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import NO_FENCE, Crew, RankStatus
from holdfast_agent.plan.plan_draft import PlanDraft
from holdfast_agent.plan.reconcile import condemn, reconcile, stop_ranks

NOT_FOUND = "not found when the agent came back"
ZYGOTE_ENDED = "the node's zygote ended, and its ranks with it"


def zygote_found(draft: PlanDraft, seen: ZygoteFound) -> None:
    """Adopt the ranks that run, report those that do not, stop those that no known order asked for."""
    draft.update(zygote_ready=True, stop=None, condemned="", store=NO_FENCE)
    crew = draft.state.crew
    if crew is None and seen.live and (order := _decoded(seen.order)) is not None:
        crew = Crew(order=order, forked=True)
        draft.remember(crew=crew)
    unordered = [live for live in seen.live if crew is None or live.fence != crew.order.fence]
    if crew is not None:
        pids = {live.rank: live.pid for live in seen.live if live.fence == crew.order.fence}
        crew = msgspec.structs.replace(crew, forked=True, pids=pids)
        draft.settle(crew)
        draft.update(progress_at=draft.now)
        if pids:
            draft.reason = "adopts living ranks"
            _report_started(draft, crew, pids, 0.0, adopted=True)
    for ended in seen.ended:
        rank_ended(draft, ended)
    if (crew := draft.state.crew) is not None:
        draft.report_lost(crew, crew.missing, NOT_FOUND, seen.statuses, agent_was_away=True)
    if draft.state.leaving:
        depart(draft)
    elif unordered:
        draft.reason = "ends ranks that no known order called for"
        stop_ranks(draft, at_once=tuple(live.rank for live in unordered))
    else:
        reconcile(draft)


def zygote_lost(draft: PlanDraft, seen: ZygoteLost) -> None:
    """Report ranks that ended with their zygote as lost, or as stopped if that was ordered."""
    stopping, crew = draft.state.stop is not None, draft.state.crew
    draft.update(zygote_ready=False)
    if stopping:
        pids = crew.pids if crew is not None else {}
        _stopped(draft, tuple(sorted(pids)), len(pids), seen.statuses)
    elif crew is not None and crew.forked:
        draft.report_lost(crew, tuple(crew.pids), ZYGOTE_ENDED, seen.statuses)
    if draft.state.leaving:
        depart(draft)


def ranks_run(draft: PlanDraft, seen: RanksRun) -> None:
    """Note the pids of ranks that were forked, and publish that they run. An input of another generation is ignored."""
    crew = draft.state.crew
    if crew is None or crew.order.fence != seen.fence or crew.forked:
        return
    crew = msgspec.structs.replace(crew, forked=True, pids=seen.pids, user=seen.user, root_because=seen.root_because)
    draft.settle(crew)
    draft.update(progress_at=draft.now)
    _report_started(draft, crew, seen.pids, seen.took_s, with_context=seen.with_context)


def start_failed(draft: PlanDraft, seen: StartFailed) -> None:
    """Publish that the ranks of an order are lost, because they could not be started."""
    crew = draft.state.crew
    if crew is None or crew.order.fence != seen.fence or crew.forked:
        return
    crew = msgspec.structs.replace(crew, forked=True)
    draft.settle(crew)
    draft.report_lost(crew, crew.missing, seen.reason, {})


def store_lost(draft: PlanDraft, seen: StoreLost) -> None:
    """Stop ranks that have not met yet: without their TCPStore they never will."""
    crew = draft.state.crew
    if crew is None or crew.order.fence != seen.fence or crew.stepped or draft.state.stop is not None:
        return
    if crew.trains:  # Checks and replays have time limits, and a node's own results are useful alone.
        condemn(draft, f"the TCPStore of the generation is gone: {seen.reason}")


def rank_ended(draft: PlanDraft, seen: RankEnded) -> None:
    """Report a rank's exit, or that the whole crew finished."""
    draft.actions.append(Acknowledge(exit_id=seen.id))
    crew, exit_report = draft.state.crew, seen.exit
    if crew is None or crew.order.fence != exit_report.fence or exit_report.rank in crew.ended:
        draft.reason = "that end is known already, or of an earlier order"
        return
    rank = exit_report.rank
    pids = {other: pid for other, pid in crew.pids.items() if other != rank}
    crew = msgspec.structs.replace(crew, pids=pids, ended={**crew.ended, rank: exit_report.exit_code})
    draft.remember(crew=crew)
    if exit_report.exit_code != 0:
        draft.emit_exit(
            crew,
            rank,
            seen.status,
            seed=seen.id,
            pid=exit_report.pid,
            exit_code=exit_report.exit_code,
            signal=exit_report.signal,
            exited_at=seen.exited_at,
            exception=exit_report.exception,
            log_tail=exit_report.log_tail[-LOG_TAIL_CHARS_MAX:],
        )
    elif len(crew.ended) == len(crew.ranks) and all(code == 0 for code in crew.ended.values()):
        draft.reason = "every rank ended with exit code 0"
        draft.emit(RanksFinished, crew, ranks=tuple(crew.ranks))


def stop_done(draft: PlanDraft, seen: StopDone) -> None:
    """Go on once the zygote has ended all ranks."""
    if seen.number == draft.state.stop:
        _stopped(draft, seen.ranks, seen.killed, seen.statuses)


def _stopped(draft: PlanDraft, ranks: tuple[int, ...], killed: int, statuses: dict[int, RankStatus]) -> None:
    state, order, crew = draft.state, draft.state.durable.order, draft.state.crew
    draft.update(stop=None, stop_began=None, condemned="")
    if state.condemned and crew is not None:
        draft.report_lost(crew, tuple(crew.pids), state.condemned, statuses)
        if state.leaving:
            depart(draft)
        reconcile(draft)
        return
    ended = crew.order if crew is not None else order
    if ended is not None:
        # A node that an order releases does not belong to the generation which that begins.
        is_released = crew is None and ended.placement is None
        draft.emit(
            RanksStopped,
            crew,
            job=ended.job,
            generation=max(0, ended.generation - is_released),
            cause=order.cause if order else None,
            incident=order.incident if order else None,
            ranks=ranks,
            killed=killed,
            took_s=max(0.0, (draft.now - (state.stop_began or draft.now)).total_seconds()),
            ordered_generation=order.generation if order else ended.generation,
        )
    draft.remember(crew=None)
    if state.leaving:
        depart(draft)
    elif order is not None and order.placement is None:
        draft.remember(settled=order.fence)
        draft.actions.append(CloseStores(keep=None))
    elif order is not None:
        draft.actions.append(CloseStores(keep=order))
        reconcile(draft)


def log_alert_seen(draft: PlanDraft, seen: LogAlertSeen) -> None:
    """Report log lines that match a failure signature. The agent itself acts on none: other services judge them."""
    crew, alert = draft.state.crew, seen.alert
    if crew is None or crew.order.fence != alert.fence:
        return
    draft.emit(
        LogSignature,
        crew,
        rank=alert.rank,
        signature=alert.signature,
        stream="err" if alert.stream == "err" else "out",
        symptom=alert.symptom,
        lines=alert.lines,
        count=alert.count,
        step=seen.step,
    )


def _report_started(
    draft: PlanDraft, crew: Crew, pids: dict[int, int], took_s: float, *, adopted: bool = False, with_context: int = 0
) -> None:
    draft.emit(
        RanksStarted,
        crew,
        ranks=_processes(pids),
        took_s=took_s,
        adopted=adopted,
        user=crew.user,
        root_because=crew.root_because,
        with_context=with_context,
    )


def _processes(pids: dict[int, int]) -> tuple[RankProcess, ...]:
    return tuple(RankProcess(rank=rank, pid=pid) for rank, pid in sorted(pids.items()))


def _decoded(order: bytes) -> NodeOrder | None:
    try:
        return NodeOrder.decode(order)
    except UnreadableOrder:
        return None
