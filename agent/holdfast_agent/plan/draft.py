"""One decision of the agent in the making: the state as it will be, what will be done, and what will be said."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.events import Event, LogSignature, ProcessExited
from holdfast.events.parts.ranks import RankException, RankProgress
from holdfast.ids import derived_id
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Action, FetchCode, Say
from holdfast_agent.plan.inputs import Observed
from holdfast_agent.plan.node_state import AgentState, Crew, RankStanding
from holdfast_agent.zygote.wire import SignsSeen

E = TypeVar("E", bound=Event)


class Draft:
    """Collects an outcome while it is worked out. `seen_id` is the input's: the ids of what is said derive from it."""

    def __init__(self, state: AgentState, seen_id: str, now: datetime, timeouts: Timeouts) -> None:
        self.state = state
        self.actions: list[Action] = []
        self.reason = ""
        self.seen_id = seen_id
        self.now = now
        self.timeouts = timeouts

    def lose(self, crew: Crew, ranks: tuple[int, ...], detail: str, standings: dict[int, RankStanding]) -> None:
        """Report ranks that are gone without an exit status."""
        if not ranks:
            return
        self.reason = detail
        pids = {rank: pid for rank, pid in crew.pids.items() if rank not in ranks}
        left = msgspec.structs.replace(crew, pids=pids, ended=crew.ended | dict.fromkeys(ranks))
        self.stand(crew=left)
        for rank in ranks:
            self.say_exited(
                crew,
                rank,
                standings.get(rank, RankStanding()),
                seed=self.seen_id,
                pid=crew.pids.get(rank),
                exited_at=self.now,
                detail=detail,
            )

    def lacks_code(self, order: NodeOrder) -> bool:
        """Whether the code that an order names is not in place; then it is fetched."""
        code = code_of(order)
        if code is None or code in self.state.code:
            return False
        self.reason = f"order {order.fence} waits for the code {code}"
        if self.state.fetching != code:
            self.update(fetching=code)
            self.actions.append(FetchCode(order=order))
        return True

    def give_up_start(self, order: NodeOrder, reason: str) -> None:
        """The ranks of this order are not started: they are reported as gone, and the controller decides."""
        crew = self.state.standing.crew
        ranks = order.placement.ranks if order.placement else range(0)
        self.lose(Crew(order=order, forked=True), tuple(ranks), reason, {})
        self.stand(crew=crew, settled=order.fence)

    def say_exited(
        self,
        crew: Crew,
        rank: int,
        standing: RankStanding,
        *,
        seed: str,
        exited_at: datetime,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        exception: RankException | None = None,
        log_tail: str = "",
        detail: str = "",
    ) -> None:
        """Report a rank's end; the same `seed` gives the same event however often it is said."""
        self.say(
            ProcessExited,
            crew,
            id=derived_id(seed, "process_exited", rank),
            rank=rank,
            local_rank=rank - crew.ranks.start,
            pid=pid,
            exit_code=exit_code,
            signal=signal,
            exited_at=exited_at,
            step=standing.step,
            steps_done=standing.steps_done,
            exception=exception,
            log_tail=log_tail,
            detail=detail,
        )

    def say_signs(self, signs: SignsSeen, step: int) -> None:
        """Report lines that show trouble. Nothing follows from them here: they are for whoever judges."""
        crew = self.state.standing.crew
        if crew is None or crew.order.fence != signs.fence:
            return
        self.say(
            LogSignature,
            crew,
            rank=signs.rank,
            signature=signs.signature,
            stream="err" if signs.stream == "err" else "out",
            symptom=signs.symptom,
            lines=signs.lines,
            count=signs.count,
            step=step,
        )

    def say(self, event_type: type[E], crew: Crew | None, **fields: Any) -> None:
        """Say an event of this crew. Until its first step it belongs to the incident that its order belongs to."""
        order = crew.order if crew is not None else None
        common: dict[str, Any] = {
            "id": derived_id(self.seen_id, event_type.__name__, len(self.actions)),
            "at": self.now,
            "source": f"agent/{self.state.node}",
            "node": self.state.node,
        }
        if order is not None and crew is not None:
            common |= {"job": order.job, "generation": order.generation, "cause": order.cause}
            common["incident"] = None if crew.stepped else order.incident
            if "purpose" in event_type.__struct_fields__ and order.placement is not None:
                common["purpose"] = order.placement.purpose
        self.actions.append(Say(event=event_type(**(common | fields))))

    def stand(self, **changes: Any) -> None:
        """Change what the agent remembers over its own restart."""
        self.update(standing=msgspec.structs.replace(self.state.standing, **changes))

    def update(self, **changes: Any) -> None:
        """Change the state."""
        self.state = msgspec.structs.replace(self.state, **changes)


def code_of(order: NodeOrder | None) -> str | None:
    """The code that an order's ranks run, as `job/version`; None: the script where it lies."""
    placement = order.placement if order is not None else None
    if placement is None or placement.code_version is None:
        return None
    return f"{placement.job.name}/{placement.code_version}"


def progress_of(crew: Crew, seen: Observed, now: datetime) -> tuple[RankProgress, ...]:
    """Where the ranks of the crew stand."""
    return tuple(
        RankProgress(
            rank=rank,
            step=standing.step,
            phase=standing.phase,
            phase_since=standing.phase_since,
            steps_done=standing.steps_done,
            since_change_s=_since_s(standing.changed_at, now),
            since_step_s=_since_s(standing.stepped_at, now),
            collectives=standing.collectives,
            in_collective=standing.in_flight,
            collective=standing.collective if standing.in_flight else "",
            has_ended=standing.has_ended,
        )
        for rank, standing in sorted(seen.standings.items())
        if rank in crew.ranks
    )


def _since_s(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


def readable(order: bytes) -> NodeOrder | None:
    """The order, if it can be read."""
    try:
        return NodeOrder.decode(order)
    except UnreadableOrder:
        return None
