"""The agent's decisions: what follows for a node from an order, a rank's end, a step, or the loss of a connection.

Everything here is pure. The ranks of one order are started at most once on a node, ever: what is to be started is noted
before it is done, so ranks that are not there afterwards are reported and never started again by the agent itself.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.events import (
    LOG_TAIL_CHARS_MAX,
    CodeNotInPlace,
    FirstStep,
    NodeDeparted,
    OrderRefused,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
)
from holdfast.events.parts.ranks import RankProcess
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Acknowledge, CloseStores, EndZygote, Outcome
from holdfast_agent.plan.draft import code_of, progress_of, readable
from holdfast_agent.plan.inputs import (
    CodeMissing,
    CodeReady,
    Input,
    LeaveAsked,
    Observed,
    OrderSeen,
    RankEnded,
    RanksRun,
    SignsHeard,
    StartFailed,
    StopDone,
    StoreLost,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import NO_FENCE, AgentState, Crew, RankStanding
from holdfast_agent.plan.reconcile import Reconciling

PROGRESS_EVERY_S = 0.9
"""A little below the pause between two looks at the ledgers: so it is every one of them."""

NOT_FOUND = "not found when the agent came back"
TAKEN_BACK = "ended by an order that the controller never gave"
ZYGOTE_ENDED = "the node's zygote ended, and its ranks with it"


def plan(state: AgentState, seen: Input, now: datetime, timeouts: Timeouts) -> Outcome:
    """What follows from `seen`."""
    draft = _Decision(state, seen.id, now, timeouts)
    match seen:
        case OrderSeen():
            draft.order_seen(seen)
        case ZygoteFound():
            draft.zygote_found(seen)
        case ZygoteLost():
            draft.zygote_lost(seen)
        case RanksRun():
            draft.ranks_run(seen)
        case StartFailed():
            draft.start_failed(seen)
        case RankEnded():
            draft.rank_ended(seen)
        case StopDone():
            draft.stop_done(seen)
        case StoreLost():
            draft.store_lost(seen)
        case Observed():
            draft.observed(seen)
        case CodeReady():
            draft.code_ready(seen)
        case CodeMissing():
            draft.code_missing(seen)
        case SignsHeard():
            draft.say_signs(seen.signs, seen.step)
        case LeaveAsked():
            draft.leave_asked()
    return Outcome(state=draft.state, actions=tuple(draft.actions), reason=draft.reason)


class _Decision(Reconciling):
    """One decision in the making."""

    # --- orders ---------------------------------------------------------------------------------

    def order_seen(self, seen: OrderSeen) -> None:
        """A desired state was read."""
        standing, order = self.state.standing, seen.order
        if standing.order is not None and order.fence < standing.order.fence == order.supersedes:
            self._take_back(order)
            return
        if standing.order is not None and order.fence <= standing.order.fence:
            known = "known already" if order.fence == standing.order.fence else "older than the present one"
            self.reason = f"order {order.fence} is {known} ({standing.order.fence})"
            if order.fence < standing.order.fence and order.job is not None:
                newest_epoch, newest_generation = standing.order.fence
                self.say(
                    OrderRefused,
                    None,
                    job=order.job,
                    generation=order.generation,
                    epoch=order.epoch,
                    newest_epoch=newest_epoch,
                    newest_generation=newest_generation,
                )
            return
        if self.state.leaving:
            self.reason = "the node is leaving"
            return
        self.stand(order=order)
        self._reconcile(seen.in_collective)

    def _take_back(self, order: NodeOrder) -> None:
        """The order obeyed last was never the controller's; this is what holds.

        Its ranks may have run before, so they are not started: they are reported as gone, and the controller decides.
        """
        self.reason = f"order {order.fence} takes the place of one that the controller never gave"
        self.stand(order=order)
        if order.placement is None:
            self._reconcile()
            return
        self._give_up_start(order, TAKEN_BACK)

    def _give_up_start(self, order: NodeOrder, reason: str) -> None:
        self.give_up_start(order, reason)
        if self.state.standing.crew is not None and self.state.zygote_ready and self.state.stop is None:
            self._stop(())

    def code_ready(self, seen: CodeReady) -> None:
        """Code came to this node, or went."""
        fetching = None if self.state.fetching in seen.code else self.state.fetching
        self.update(code=seen.code, fetching=fetching)
        if not self.state.leaving:
            self._reconcile(seen.in_collective)

    def code_missing(self, seen: CodeMissing) -> None:
        """What an order waits for cannot be had: its start has failed, with this reason."""
        if self.state.fetching == seen.code:
            self.update(fetching=None)
        standing, order = self.state.standing, self.state.standing.order
        if order is None or code_of(order) != seen.code or standing.settled == order.fence:
            return
        if standing.crew is not None and standing.crew.order.fence == order.fence:
            return
        reason = f"the code {seen.code} could not be fetched: {seen.reason}"
        version = seen.code.rpartition("/")[2]
        self.say(CodeNotInPlace, Crew(order=order), version=version, detail=seen.reason)
        self._give_up_start(order, reason)

    # --- the zygote -----------------------------------------------------------------------------

    def zygote_found(self, seen: ZygoteFound) -> None:
        """A connection to the zygote: adopt what lives, report what does not."""
        self.update(zygote_ready=True, stop=None, condemned="", store=NO_FENCE)
        crew = self.state.standing.crew
        if crew is None and seen.live and (order := readable(seen.order)) is not None:
            crew = Crew(order=order, forked=True)
            self.stand(crew=crew)
        strangers = [live for live in seen.live if crew is None or live.fence != crew.order.fence]
        if crew is not None:
            pids = {live.rank: live.pid for live in seen.live if live.fence == crew.order.fence}
            crew = msgspec.structs.replace(crew, forked=True, pids=pids)
            self.stand(crew=crew, settled=max(self.state.standing.settled, crew.order.fence))
            self.update(progress_at=self.now)
            if pids:
                self.reason = "adopts living ranks"
                processes = tuple(RankProcess(rank=rank, pid=pid) for rank, pid in sorted(pids.items()))
                self.say(RanksStarted, crew, ranks=processes, took_s=0.0, adopted=True)
        for ended in seen.ended:
            self.rank_ended(ended)
        if (crew := self.state.standing.crew) is not None:
            self.lose(crew, crew.missing, NOT_FOUND, seen.standings)
        if self.state.leaving:
            self._leave()
        elif strangers:
            self.reason = "ends ranks that no known order called for"
            self._stop(tuple(live.rank for live in strangers))
        else:
            self._reconcile()

    def zygote_lost(self, seen: ZygoteLost) -> None:
        """The zygote is gone; its ranks died with it."""
        stopping, crew = self.state.stop is not None, self.state.standing.crew
        self.update(zygote_ready=False)
        if stopping:
            pids = crew.pids if crew is not None else {}
            self._stopped(tuple(sorted(pids)), len(pids), seen.standings)
        elif crew is not None and crew.forked:
            self.lose(crew, tuple(crew.pids), ZYGOTE_ENDED, seen.standings)
        if self.state.leaving:
            self._leave()

    def ranks_run(self, seen: RanksRun) -> None:
        """The zygote has forked the ranks."""
        crew = self.state.standing.crew
        if crew is None or crew.order.fence != seen.fence or crew.forked:
            return
        crew = msgspec.structs.replace(crew, forked=True, pids=seen.pids)
        self.stand(crew=crew, settled=max(self.state.standing.settled, seen.fence))
        self.update(progress_at=self.now)
        processes = tuple(RankProcess(rank=rank, pid=pid) for rank, pid in sorted(seen.pids.items()))
        self.say(RanksStarted, crew, ranks=processes, took_s=seen.took_s)

    def start_failed(self, seen: StartFailed) -> None:
        """The zygote could not fork the ranks."""
        crew = self.state.standing.crew
        if crew is None or crew.order.fence != seen.fence or crew.forked:
            return
        crew = msgspec.structs.replace(crew, forked=True)
        self.stand(crew=crew, settled=max(self.state.standing.settled, seen.fence))
        self.lose(crew, crew.missing, seen.reason, {})

    def store_lost(self, seen: StoreLost) -> None:
        """Without their store, ranks that have not met yet never will."""
        crew = self.state.standing.crew
        if crew is None or crew.order.fence != seen.fence or crew.stepped or self.state.stop is not None:
            return
        if not crew.trains:
            return  # nobody waits for ever there, and what a node finds out by itself is worth having
        self._condemn(f"the TCPStore of the generation is gone: {seen.reason}")

    # --- ranks ----------------------------------------------------------------------------------

    def rank_ended(self, seen: RankEnded) -> None:
        """A rank ended by itself."""
        self.actions.append(Acknowledge(exit_id=seen.id))
        crew, exit_report = self.state.standing.crew, seen.exit
        if crew is None or crew.order.fence != exit_report.fence or exit_report.rank in crew.ended:
            self.reason = "that end is known already, or of an earlier order"
            return
        rank = exit_report.rank
        pids = {other: pid for other, pid in crew.pids.items() if other != rank}
        crew = msgspec.structs.replace(crew, pids=pids, ended={**crew.ended, rank: exit_report.exit_code})
        self.stand(crew=crew)
        if exit_report.exit_code != 0:
            self.say_exited(
                crew,
                rank,
                seen.standing,
                seed=seen.id,
                pid=exit_report.pid,
                exit_code=exit_report.exit_code,
                signal=exit_report.signal,
                exited_at=seen.exited_at,
                exception=exit_report.exception,
                log_tail=exit_report.log_tail[-LOG_TAIL_CHARS_MAX:],
            )
        elif len(crew.ended) == len(crew.ranks) and all(code == 0 for code in crew.ended.values()):
            self.reason = "every rank ended with exit code 0"
            self.say(RanksFinished, crew, ranks=tuple(crew.ranks))

    def stop_done(self, seen: StopDone) -> None:
        """The zygote has ended everything."""
        if seen.number == self.state.stop:
            self._stopped(seen.ranks, seen.killed, seen.standings)

    def _stopped(self, ranks: tuple[int, ...], killed: int, standings: dict[int, RankStanding]) -> None:
        state = self.state
        standing, began = state.standing, state.stop_began or self.now
        self.update(stop=None, stop_began=None, condemned="")
        if state.condemned and standing.crew is not None:
            self.lose(standing.crew, tuple(standing.crew.pids), state.condemned, standings)
            if state.leaving:
                self._leave()
            self._reconcile()
            return
        order, crew = standing.order, standing.crew
        ended = crew.order if crew is not None else order
        if ended is not None:
            self.say(
                RanksStopped,
                crew,
                job=ended.job,
                generation=ended.generation,
                cause=order.cause if order else None,
                incident=order.incident if order else None,
                ranks=ranks,
                killed=killed,
                took_s=max(0.0, (self.now - began).total_seconds()),
                ordered_generation=order.generation if order else ended.generation,
            )
        self.stand(crew=None)
        if state.leaving:
            self._leave()
        elif order is not None and order.placement is None:
            self.stand(settled=order.fence)
            self.actions.append(CloseStores(keep=None))
        elif order is not None:
            self.actions.append(CloseStores(keep=order))
            self._reconcile()

    # --- time and progress ----------------------------------------------------------------------

    def observed(self, seen: Observed) -> None:
        """The ledgers were read."""
        crew = self.state.standing.crew
        if crew is None or not crew.pids or self.state.stop is not None:
            return
        steps = tuple(seen.standings[rank].steps_done if rank in seen.standings else 0 for rank in crew.ranks)
        if steps != self.state.progress:
            self.update(progress=steps, progress_at=self.now)
        if crew.trains and not crew.stepped and all(steps):
            self._first_step(crew, seen)
        if crew.trains and self._is_due(self.state.progress_said_at, PROGRESS_EVERY_S) and seen.standings:
            self.update(progress_said_at=self.now)
            job = crew.order.placement.job if crew.order.placement else None
            self.say(
                Progress,
                crew,
                incident=None,
                ranks=progress_of(crew, seen, self.now),
                world_size=job.nnodes * job.nproc_per_node if job else 0,
                nproc_per_node=job.nproc_per_node if job else 0,
                mesh=job.mesh if job else None,
            )
        if (
            seen.cut_off_s is not None
            and seen.cut_off_s >= self.timeouts.lease_s
            and self._is_due(self.state.progress_at, self.timeouts.lease_s)
        ):
            self._condemn(
                f"ended by its agent: no contact with the bus for {seen.cut_off_s:.0f} s "
                f"and no step for {self.timeouts.lease_s:.0f} s or more"
            )

    def _first_step(self, crew: Crew, seen: Observed) -> None:
        stepped = msgspec.structs.replace(crew, stepped=True)
        self.stand(crew=stepped)
        standings = [seen.standings[rank] for rank in crew.ranks]
        # A script may count its steps in any way that it likes, but none comes before the first.
        first = max(0, min(standing.step - standing.steps_done + 1 for standing in standings))
        completed = max(standing.first_step_at or self.now for standing in standings)
        numbered = all(standing.is_numbered for standing in standings)
        self.say(FirstStep, crew, step=first, completed_at=completed, is_numbered=numbered)

    def _condemn(self, why: str) -> None:
        self.reason = why
        self.update(condemned=why)
        self._stop(())

    def _is_due(self, last: datetime | None, every_s: float) -> bool:
        return last is None or (self.now - last).total_seconds() >= every_s

    # --- the end --------------------------------------------------------------------------------

    def leave_asked(self) -> None:
        """The agent is shut down on purpose."""
        if self.state.leaving:
            return
        self.update(leaving=True)
        crew = self.state.standing.crew
        if self.state.stop is not None:
            return
        if self.state.zygote_ready and crew is not None:
            self._stop(())
        else:
            self._leave()

    def _leave(self) -> None:
        if not self.state.departed:
            self.update(departed=True)
            self.say(NodeDeparted, None, instance=self.state.instance)
            self.actions.append(EndZygote())
