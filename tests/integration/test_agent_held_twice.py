"""Two agents of one node name: the one that came first holds the node, the other one is refused and says by whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.bus import Bus
from holdfast.events import NodeDeparted, NodeRefused, NodeRegistered, RanksStarted
from holdfast.events.parts.job import AgentPlace, JobSpec
from holdfast.node import process_mark
from holdfast.subjects import heartbeat_subject
from holdfast_agent.node_hold import Holding
from tests.integration.agent_node import WAIT_S, Node, gone, node, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
print("ready", flush=True)
while True:
    time.sleep(60)
"""


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


async def test_an_agent_that_leaves_gives_way_at_once(node_place: Path, tmp_path: Path, embedded_nats: str) -> None:
    """Its ranks end at once then, and no longer within their grace: of their end it hears nothing more."""
    patient = {"HOLDFAST_TIMEOUTS_STOP_GRACE_S": "300", "HOLDFAST_TIMEOUTS_START_S": "600"}
    async with node("n-leaves", node_place, embedded_nats, patient) as it:
        registered = await it.complete()
        (tmp_path / "stubborn.py").write_text(STUBBORN)
        job = JobSpec(
            name="job-1",
            script=str(tmp_path / "stubborn.py"),
            nproc_per_node=1,
            cwd=str(tmp_path),
            directory=str(tmp_path),
        )
        await it.order(job, 1, registered.facts.store_ports[1])
        started = await it.heard.wait(RanksStarted)
        output = it.directory / "logs/job-1/rank-0.out"
        await until(lambda: output.exists() and "ready" in output.read_text())
        it.process.terminate()
        await until(lambda: "not yet" in output.read_text())
        holder = Holding(
            instance="earlier",
            since=datetime(2026, 1, 1, tzinfo=UTC),
            place=AgentPlace(hostname="elsewhere", pid=1, state_dir="/state"),
        )
        await it.bus.broadcast(heartbeat_subject("n-leaves"), msgspec.json.encode(holder))
        assert await exit_code(it) == 1
        await gone(started.ranks[0].pid)
