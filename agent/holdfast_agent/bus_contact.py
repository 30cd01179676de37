"""The node's contact with the bus: heartbeats while connected, and the time since the cut (`plan/cut_off.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from holdfast.bus import Bus
from holdfast.clock import Now
from holdfast.daemon.liveness import STALL_S
from holdfast.subjects import heartbeat_subject
from holdfast_agent.node_hold import Holding
from holdfast_agent.plan.node_state import AgentState, RankStatus


class BusContact:
    """Sends heartbeats over plain NATS. `on_reconnect` is called when a connection replaces an earlier one."""

    def __init__(self, every_s: float, now: Now, on_reconnect: Callable[[], None]) -> None:
        self._every_s = every_s
        self._now = now
        self._on_reconnect = on_reconnect
        self._cut_off_since: datetime | None = now()
        self.present_since = now()
        """Start of the unbroken sending of heartbeats."""

    def cut_off_s(self) -> float | None:
        """Return the time without a connection; None while connected."""
        return None if self._cut_off_since is None else (self._now() - self._cut_off_since).total_seconds()

    async def beat(
        self,
        bus: Bus,
        state: Callable[[], AgentState],
        statuses: Callable[[], Iterable[RankStatus]],
        holding: Callable[[], Holding],
    ) -> None:
        """Send heartbeats until cancelled, also before the zygote is warm: a slow start is no loss of the node."""
        connected_since: datetime | None = None
        woke_at = self._now()
        while True:
            if (self._now() - woke_at).total_seconds() > self._every_s + STALL_S:
                # It was stopped, or its machine slept: another agent may have taken the node.
                self.present_since = self._now()
            since = bus.connected_since
            if since is None:
                self._cut_off_since = self._cut_off_since or self._now()
            else:
                self._cut_off_since = None
                if connected_since is not None and since != connected_since:
                    self.present_since = self._now()
                    self._on_reconnect()
                connected_since = since
                body = heartbeat(state(), statuses(), self._now(), holding())
                await bus.broadcast(heartbeat_subject(state().node), body)
            woke_at = self._now()
            await asyncio.sleep(self._every_s)


def heartbeat(state: AgentState, statuses: Iterable[RankStatus], now: datetime, holding: Holding) -> bytes:
    """Return the body as JSON. `step` is the last step that all ranks completed, -1 without ranks."""
    order = state.durable.order
    return msgspec.json.encode(
        {
            "node": state.node,
            "instance": state.instance,
            "since": holding.since,
            "place": holding.place,
            "at": now,
            "epoch": order.epoch if order else 0,
            "generation": order.generation if order else 0,
            "step": min((status.step for status in statuses), default=-1),
        }
    )
