"""A real agent and its bus: lines live, and what happens while the bus is away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.bus import event_message
from holdfast.daemon.ready import READY_FD_VARIABLE
from holdfast.events import FirstStep, NodeDeparted, NodeRegistered, ProcessExited, RanksStarted
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.subjects import heartbeat_subject, log_subject
from tests.integration.agent_node import WAIT_S, gone, node
from tests.integration.servers import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ALONE = """
import time, holdfast.trainer
for step in range(100000):
    holdfast.trainer.step(loss=1.0)
    print("line", step)
    time.sleep(0.02)
"""


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    server.stop()


def spec(folder: Path) -> JobSpec:
    (folder / "alone.py").write_text(ALONE)
    return JobSpec(
        name="job-1", script=str(folder / "alone.py"), nproc_per_node=2, cwd=str(folder), directory=str(folder)
    )


async def test_a_node_registers_once_its_vault_answers(node_place: Path, embedded_nats: str) -> None:
    """What it registers with is granted to a job, which has no copies on a node without a vault."""
    async with node("n-zygote", node_place, embedded_nats) as it:
        await it.registered()
    # Its zygote is there at once, and its vault has to start.
    async with node("n-vault", node_place, embedded_nats) as it:
        await it.registered()
        assert it.heard.all(NodeRegistered)[0].facts.vault_port


async def test_an_agent_is_ready_once_its_registration_is_on_the_bus(node_place: Path, embedded_nats: str) -> None:
    """`holdfast up` returns then, and a job that begins at once finds the node."""
    async with node("n-ready", node_place, embedded_nats) as it:
        await it.complete()
        await it.end_agent()
        before = len(it.heard.all(NodeRegistered))
        ready, announced = os.pipe()
        it.passed, it.environment = (announced,), {READY_FD_VARIABLE: str(announced)}
        it.start()
        os.close(announced)
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.to_thread(os.read, ready, 1)
        os.close(ready)
        later = NodeDeparted(id=uuid7(), source="test", node="n-ready", at=datetime.now(UTC), instance=uuid7())
        await it.bus.publish(event_message(later))
        await it.heard.wait(NodeDeparted, lambda event: event.id == later.id)
        assert len(it.heard.all(NodeRegistered)) > before


async def test_rank_0_is_heard_live_and_the_node_beats(node_place: Path, tmp_path: Path, embedded_nats: str) -> None:
    async with node("n-live", node_place, embedded_nats) as it:
        port = (await it.registered()).facts.store_ports[1]
        logs = it.bus.listen(log_subject("job-1", 0, "*"))
        first = asyncio.ensure_future(anext(logs))
        await it.order(spec(tmp_path), 1, port)
        async with asyncio.timeout(WAIT_S):
            said = msgspec.json.decode((await first)[1])
            assert (said["rank"], said["stream"], said["generation"]) == (0, "out", 1)
            assert said["lines"][0].startswith("line ")
            async for _, body in it.bus.listen(heartbeat_subject("n-live")):
                beat = msgspec.json.decode(body)
                if beat["step"] >= 0:
                    break
        assert (beat["node"], beat["epoch"], beat["generation"]) == ("n-live", 1, 1)


async def test_what_happens_while_the_bus_is_away_is_said_when_it_is_back(
    node_place: Path, tmp_path: Path, nats: NatsServer
) -> None:
    async with node("n-cut", node_place, nats.url) as it:
        first = await it.complete()
        await it.order(spec(tmp_path), 1, first.facts.store_ports[1])
        started = await it.heard.wait(RanksStarted)
        await it.heard.wait(FirstStep)
        nats.kill()
        os.kill(started.ranks[0].pid, signal.SIGKILL)
        await gone(started.ranks[0].pid)
        # The agent dies as well, and its successor comes up without a bus: it looks after the ranks all the same.
        it.kill_agent()
        it.start()
        await nats.start()
        exited = await it.heard.wait(ProcessExited)
        assert (exited.rank, exited.signal) == (0, signal.SIGKILL)
        adopted = await it.heard.wait(RanksStarted, lambda e: e.adopted)
        assert [process.pid for process in adopted.ranks] == [started.ranks[1].pid]
        await it.complete(after=first)
        assert len(it.heard.all(ProcessExited)) == 1


async def test_an_agent_whose_bus_is_gone_leaves_with_its_ranks_and_its_successor_says_so(
    node_place: Path, tmp_path: Path, nats: NatsServer
) -> None:
    # Longer than the test waits for the agent: ranks that have ended are all that it may wait for.
    patient = {"HOLDFAST_TIMEOUTS_STOP_GRACE_S": "300", "HOLDFAST_TIMEOUTS_START_S": "600"}
    async with node("n-left", node_place, nats.url, patient) as it:
        first = await it.complete()
        await it.order(spec(tmp_path), 1, first.facts.store_ports[1])
        started = await it.heard.wait(RanksStarted)
        nats.kill()
        assert await it.end_agent() == 0
        assert not [rank.pid for rank in started.ranks if Path(f"/proc/{rank.pid}").exists()]
        it.start()
        await nats.start()
        await it.heard.wait(NodeDeparted)


async def test_a_broken_connection_registers_the_node_again(node_place: Path, tmp_path: Path, nats: NatsServer) -> None:
    async with node("n-again", node_place, nats.url) as it:
        before = await it.complete()
        nats.kill()
        await nats.start()
        again = await it.complete(after=before)
        assert again.instance == before.instance
