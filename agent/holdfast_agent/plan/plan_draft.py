"""The plan under construction: the next state, the actions and the events to emit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.events import Event, ProcessExited
from holdfast.events.parts.ranks import RankException
from holdfast.ids import derived_id
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Action, Emit
from holdfast_agent.plan.node_state import AgentState, Crew, RankStatus

E = TypeVar("E", bound=Event)


class PlanDraft:
    """A plan that the handlers of one input fill in. Event ids derive from `input_id`."""

    def __init__(self, state: AgentState, input_id: str, now: datetime, timeouts: Timeouts) -> None:
        self.state = state
        self.actions: list[Action] = []
        self.reason = ""
        self.input_id = input_id
        self.now = now
        self.timeouts = timeouts

    def update(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def remember(self, **changes: Any) -> None:
        """Change the durable part of the state."""
        self.update(durable=msgspec.structs.replace(self.state.durable, **changes))

    def settle(self, crew: Crew) -> None:
        """Remember the crew and that its order is obeyed."""
        self.remember(crew=crew, settled=max(self.state.durable.settled, crew.order.fence))

    def emit(self, event_type: type[E], crew: Crew | None, **fields: Any) -> None:
        """Emit an event of this crew. It belongs to the order's incident until the crew's first step."""
        order = crew.order if crew is not None else None
        common: dict[str, Any] = {
            "id": derived_id(self.input_id, event_type.__name__, len(self.actions)),
            "at": self.now,
            "source": f"agent/{self.state.node}",
            "node": self.state.node,
        }
        if order is not None and crew is not None:
            common |= {"job": order.job, "generation": order.generation, "cause": order.cause}
            common["incident"] = None if crew.stepped else order.incident
            if "purpose" in event_type.__struct_fields__ and order.placement is not None:
                common["purpose"] = order.placement.purpose
        self.actions.append(Emit(event=event_type(**(common | fields))))

    def emit_exit(
        self,
        crew: Crew,
        rank: int,
        status: RankStatus,
        *,
        seed: str,
        exited_at: datetime,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        exception: RankException | None = None,
        log_tail: str = "",
        detail: str = "",
        agent_was_away: bool = False,
    ) -> None:
        """Report a rank's exit. The same `seed` always gives the same event id."""
        self.emit(
            ProcessExited,
            crew,
            id=derived_id(seed, "process_exited", rank),
            rank=rank,
            local_rank=rank - crew.ranks.start,
            pid=pid,
            exit_code=exit_code,
            signal=signal,
            exited_at=exited_at,
            step=status.step,
            steps_done=status.steps_done,
            exception=exception,
            log_tail=log_tail,
            detail=detail,
            agent_was_away=agent_was_away,
            finished_ranks=tuple(sorted(it for it, code in crew.ended.items() if code == 0)),
        )

    def report_lost(
        self,
        crew: Crew,
        ranks: tuple[int, ...],
        detail: str,
        statuses: dict[int, RankStatus],
        *,
        agent_was_away: bool = False,
    ) -> None:
        """Report ranks that are gone without an exit status."""
        if not ranks:
            return
        self.reason = detail
        pids = {rank: pid for rank, pid in crew.pids.items() if rank not in ranks}
        self.remember(crew=msgspec.structs.replace(crew, pids=pids, ended=crew.ended | dict.fromkeys(ranks)))
        for rank in ranks:
            self.emit_exit(
                crew,
                rank,
                statuses.get(rank, RankStatus()),
                seed=self.input_id,
                pid=crew.pids.get(rank),
                exited_at=self.now,
                detail=detail,
                agent_was_away=agent_was_away,
            )

    def report_not_started(self, order: NodeOrder, reason: str, *, agent_was_away: bool = False) -> None:
        """Report the ranks of an order as lost instead of starting them; the controller decides what to do."""
        crew = self.state.crew
        ranks = order.placement.ranks if order.placement else range(0)
        lost = Crew(order=order, forked=True)
        self.report_lost(lost, tuple(ranks), reason, {}, agent_was_away=agent_was_away)
        self.remember(crew=crew, settled=order.fence)
