"""Heartbeats of nodes, and requests to register to those that the inventory lacks or has in an earlier state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from holdfast.bus import Bus, BusError
from holdfast.clock import Now
from holdfast.decoding import UNREADABLE
from holdfast.requests import REGISTER
from holdfast.subjects import ALL_HEARTBEATS, ping_subject
from holdfast_standby.state import Node

ASKED_EVERY = timedelta(seconds=10)
"""Pause before the same node is asked to register again."""
ASKED_MAX = 10_000
"""Nodes that are asked in this time: heartbeats with invented names must not fill the memory."""
ANSWER_WITHIN_S = 2.0

log = structlog.get_logger(__name__)


class Heartbeat(msgspec.Struct, frozen=True):
    """The part of a heartbeat that the inventory can be compared with."""

    instance: str = ""
    epoch: int = 0


class Heartbeats:
    """Last heartbeat of each node. Not stored: after a restart every node has the full time to send one."""

    def __init__(self, bus: Bus, now: Now, node: Callable[[str], Node | None]) -> None:
        self._bus = bus
        self._now = now
        self._node = node
        self._asked: dict[str, datetime] = {}
        self._to_ask: asyncio.Queue[str] = asyncio.Queue()
        self.last: dict[str, datetime] = {}
        self.only: dict[str, tuple[str, datetime]] = {}
        """The agent that alone sends a node's heartbeats, and since when."""

    async def listen(self) -> None:
        """Receive the heartbeats of known nodes until cancelled. Those of unknown nodes are no sign of life."""
        async for subject, body in self._bus.listen(ALL_HEARTBEATS):
            name = subject.rsplit(".", 1)[-1]
            node, heartbeat = self._node(name), _decoded(body)
            if node is not None:
                self.last[name] = now = self._now()
                if name not in self.only or self.only[name][0] != heartbeat.instance:
                    self.only[name] = (heartbeat.instance, now)
            if is_outdated(node, heartbeat) and self._may_ask(name):
                self._to_ask.put_nowait(name)

    async def ask(self) -> None:
        """Ask nodes to register that the inventory does not know as they are, until cancelled.

        The database may have been restored from a backup, and their registrations are older than what the bus keeps.
        """
        while True:
            node = await self._to_ask.get()
            log.warning("a node is not in the inventory as it is: asks it to register", node=node)
            try:
                await self._bus.request(ping_subject(f"agent-{node}"), REGISTER, ANSWER_WITHIN_S)
            except BusError as error:
                log.info("a node cannot be asked to register now", node=node, error=str(error))

    def _may_ask(self, node: str) -> bool:
        now = self._now()
        if (asked_at := self._asked.get(node)) is not None and now - asked_at < ASKED_EVERY:
            return False
        if len(self._asked) >= ASKED_MAX:
            self._asked = {name: at for name, at in self._asked.items() if now - at < ASKED_EVERY}
        if len(self._asked) >= ASKED_MAX:
            return False
        self._asked[node] = now
        return True


def is_outdated(node: Node | None, heartbeat: Heartbeat) -> bool:
    """Return True if the inventory lacks a node that sends this heartbeat, or has an earlier state of it.

    The epoch of a node that a job holds is that of its grant, whatever order the node believes to be its newest.
    """
    if node is None or heartbeat.instance > node.instance:
        return True
    return node.job is None and heartbeat.epoch > node.epoch


def _decoded(body: bytes) -> Heartbeat:
    try:
        return msgspec.json.decode(body, type=Heartbeat)
    except UNREADABLE:
        return Heartbeat()
