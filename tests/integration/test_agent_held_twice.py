"""Two agents of one node name: the one that came first holds the node, the other one is refused and says by whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec
import pytest

from holdfast.bus import Bus
from holdfast.events import NodeDeparted, NodeRefused, NodeRegistered
from holdfast.node import process_mark
from holdfast.subjects import heartbeat_subject
from tests.integration.agent_node import WAIT_S, Node, node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Beat(msgspec.Struct):
    instance: str


async def heard_from(bus: Bus, name: str, other_than: str, beats: int) -> str:
    """The instance that has sent this many heartbeats, a second apart, and is not this one."""
    heard = 0
    async with asyncio.timeout(WAIT_S):
        async for _, body in bus.listen(heartbeat_subject(name)):
            instance = msgspec.json.decode(body, type=Beat).instance
            heard += instance != other_than
            if heard == beats:
                return instance
    raise AssertionError("the bus ended")


def second(first: Node, directory: Path, url: str) -> Node:
    """Another agent of the same name, as on another machine."""
    directory.mkdir(exist_ok=True)
    return Node(first.name, directory / "state", url, first.bus, first.heard)


async def end(it: Node) -> None:
    """Leave nothing of a node that has a place of its own, its zygote included."""
    await it.clean()
    await asyncio.to_thread(process_mark.end_marked, process_mark.mark_of(it.directory))


async def exit_code(it: Node) -> int:
    async with asyncio.timeout(WAIT_S):
        return await asyncio.to_thread(it.process.wait)


async def test_a_second_agent_is_refused(node_place: Path, tmp_path: Path, embedded_nats: str) -> None:
    async with node("n-twice", node_place, embedded_nats) as first:
        registered = await first.complete()
        other = second(first, tmp_path / "other", embedded_nats)
        other.start()
        try:
            assert await exit_code(other) == 1
        finally:
            await end(other)
        refused = await first.heard.wait(NodeRefused)
        assert (refused.place.pid, refused.place.state_dir) == (other.process.pid, str(other.directory))
        assert (refused.holder.pid, refused.holder_instance) == (first.process.pid, registered.instance)
        log = (tmp_path / "other" / "n-twice.log").read_text()
        assert f"node n-twice is held by another agent: pid {first.process.pid} on" in log
        assert "Give this agent another --node, or stop that one first." in log

        # On the same machine the lock of the state directory decides, before there is any bus.
        same = Node("n-same", node_place, embedded_nats, first.bus, first.heard)
        same.start()
        assert await exit_code(same) == 1
        assert f"another agent (pid {first.process.pid}) uses" in (node_place.parent / "n-same.log").read_text()

        # The first one was not disturbed, and an agent that follows it in its place takes over.
        assert first.process.poll() is None
        assert not first.heard.all(NodeDeparted)
        first.kill_agent()
        first.start()
        await first.heard.wait(NodeRegistered, lambda event: event.instance > registered.instance)
        assert len(first.heard.all(NodeRefused)) == 1


async def test_an_agent_that_was_away_gives_way_to_the_one_that_took_its_node(
    node_place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    async with node("n-away", node_place, embedded_nats) as first:
        instance = (await first.registered()).instance
        os.kill(first.process.pid, signal.SIGSTOP)
        other = second(first, tmp_path / "other", embedded_nats)
        other.start()
        try:
            # By then the first one has stood still for long enough to notice it.
            assert await heard_from(first.bus, "n-away", instance, beats=4) > instance
            os.kill(first.process.pid, signal.SIGCONT)
            assert await exit_code(first) == 1
            assert other.process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                first.process.send_signal(signal.SIGCONT)
            await end(other)
        refused = await first.heard.wait(NodeRefused)
        assert refused.holder.pid == other.process.pid
        assert not first.heard.all(NodeDeparted)
