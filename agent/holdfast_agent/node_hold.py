"""One agent holds a node: a second one with the same name is refused (docs/adr/0028-one-agent-holds-a-node.md).

On one machine the lock of the state directory decides. Across directories and machines the bus does: an agent asks for
the holder of its node before it takes orders, and reads the heartbeats of its node from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from holdfast.bus import Bus, BusError, BusUnavailable, NoResponder, event_message
from holdfast.clock import Now
from holdfast.decoding import UNREADABLE
from holdfast.events import NodeRefused
from holdfast.events.parts.job import AgentPlace
from holdfast.fresh_ids import uuid7
from holdfast.subjects import heartbeat_subject, holder_subject

ASK_S = 2.0
"""Time for the holder's answer. After a power cut the bus may still keep the connection of an agent that is gone."""

REPORT_S = 3.0

log = structlog.get_logger(__name__)


class NodeHeldElsewhere(RuntimeError):
    """Another agent holds this node's name."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an agent's heartbeat, and its answer to another agent of its node, that names the agent."""

    instance: str
    since: datetime
    """Start of its unbroken presence on the bus."""
    place: AgentPlace

    @property
    def turn(self) -> tuple[datetime, str]:
        """Sort key. The agent with the later turn gives way."""
        return self.since, self.instance


def place_of(state_dir: Path) -> AgentPlace:
    return AgentPlace(hostname=socket.gethostname(), pid=os.getpid(), state_dir=str(state_dir))


class NodeHold:
    """The hold of one agent on its node. `holding` returns what names this agent now."""

    def __init__(self, node: str, holding: Callable[[], Holding], end_ranks: Callable[[], None], now: Now) -> None:
        self._node = node
        self._holding = holding
        self._end_ranks = end_ranks
        self._now = now
        self._strangers: set[str] = set()

    async def take(self, bus: Bus) -> None:
        """Ask for a holder. Raises NodeHeldElsewhere if another agent answers; it does so in milliseconds."""
        try:
            answer = await bus.request(holder_subject(self._node), b"", ASK_S)
            other = msgspec.json.decode(answer, type=Holding)
        except (NoResponder, *UNREADABLE):
            return
        except BusUnavailable as error:
            log.warning("no answer about the holder of this node, so there is none", reason=str(error))
            return
        if other.instance != self._holding().instance:
            await self._give_way(bus, other)

    async def answer(self, bus: Bus) -> None:
        """Answer other agents that ask for the holder, until cancelled."""

        async def own(_: bytes) -> bytes:
            return msgspec.json.encode(self._holding())

        await bus.serve(holder_subject(self._node), own)

    async def watch(self, bus: Bus) -> None:
        """Read the node's heartbeats. Raises NodeHeldElsewhere if another agent held the node before this one did."""
        async for _, body in bus.listen(heartbeat_subject(self._node)):
            try:
                other = msgspec.json.decode(body, type=Holding)
            except UNREADABLE:
                continue
            own = self._holding()
            if other.instance == own.instance:
                continue
            if other.turn < own.turn:
                await self._give_way(bus, other)
            if other.instance not in self._strangers:
                self._strangers.add(other.instance)
                log.error("another agent has this node's name; it gives way", other=describe(other.place))

    async def _give_way(self, bus: Bus, other: Holding) -> NoReturn:
        own = self._holding()
        # Before anything that may take time: the holder may start the same ranks.
        self._end_ranks()
        event = NodeRefused(
            id=uuid7(),
            at=self._now(),
            source=f"agent/{self._node}",
            node=self._node,
            instance=own.instance,
            place=own.place,
            holder=other.place,
            holder_instance=other.instance,
        )
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(REPORT_S):
                await bus.publish(event_message(event))
        error = NodeHeldElsewhere(
            f"node {self._node} is held by another agent: {describe(other.place)}. "
            "Give this agent another --node, or stop that one first."
        )
        log.error("refused", reason=str(error))
        raise error


def describe(place: AgentPlace) -> str:
    return f"pid {place.pid} on {place.hostname}, state in {place.state_dir}"
