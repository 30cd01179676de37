"""Going from the ranks that a node has towards those that its order asks for, a step at a time. Pure."""

from __future__ import annotations

from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.actions import Fork, OpenStore, Stop
from holdfast_agent.plan.draft import Draft
from holdfast_agent.plan.node_state import Crew


class Reconciling(Draft):
    """A decision that may have ranks ended or started."""

    def _reconcile(self, in_collective: tuple[int, ...] = ()) -> None:
        """Go towards the order, if nothing is under way. `in_collective` are ranks that would not hear a SIGTERM."""
        standing = self.state.standing
        order, crew = standing.order, standing.crew
        if order is None or standing.settled == order.fence:
            return
        if crew is not None and crew.order.fence == order.fence:
            return
        # Before anything is stopped: what runs now goes on meanwhile.
        if self.lacks_code(order):
            return
        if not self.state.zygote_ready or self.state.stop is not None:
            self.reason = "waits for the zygote" if self.state.stop is None else "waits for the ranks to end"
            return
        self._open_store(order)
        if crew is not None or order.placement is None:
            self.reason = f"order {order.fence} replaces the present ranks" if crew else "the order asks for no ranks"
            broken = order.incident is not None or (crew is not None and any(code != 0 for code in crew.ended.values()))
            self._stop(in_collective if broken else ())
        else:
            self._fork(order)

    def _open_store(self, order: NodeOrder) -> None:
        hosts = order.placement is not None and order.placement.node_rank == 0
        if hosts and self.state.store != order.fence:
            self.update(store=order.fence)
            self.actions.append(OpenStore(order=order))

    def _fork(self, order: NodeOrder) -> None:
        self.reason = f"order {order.fence} asks for ranks"
        self._open_store(order)
        self.stand(crew=Crew(order=order))
        self.update(progress=(), progress_at=self.now, progress_said_at=None)
        self.actions.append(Fork(order=order))

    def _stop(self, at_once: tuple[int, ...]) -> None:
        number = self.state.stops + 1
        self.update(stops=number, stop=number, stop_began=self.now)
        self.actions.append(Stop(number=number, at_once=at_once))
