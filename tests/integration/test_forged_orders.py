"""Orders by somebody who may write everything on the bus and has no service's key: a real agent carries out none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast.bus.accounts import OPERATOR, node_user
from holdfast.bus.nats import NatsBus, connect
from holdfast.clock import system_now
from holdfast.events import (
    CodeInPlace,
    CollectivesProfiled,
    MessageRejected,
    OrderRefused,
    RanksStarted,
    RanksStopped,
    StackDump,
)
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.orders.any_order import AnyOrder
from holdfast.orders.backup import BackupOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder, Placement
from holdfast.orders.signatures import SIGNERS, OrderSigner
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.subjects import kv_subject
from tests.integration.agent_node import Node, node
from tests.integration.servers import NatsServer
from tests.scenes.order_keys import PRIVATE, private_keys, signed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NODE = "n-1"
LONG_AGO = timedelta(hours=1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.nodes = (NODE,)
    await server.start()
    yield server
    server.stop()


@asynccontextmanager
async def agent(server: NatsServer, place: Path) -> AsyncIterator[Node]:
    """An agent with the password and the public keys of its node, and a bus on which the test plays the services."""
    own = {"HOLDFAST_NATS_URL": server.url_of(node_user(NODE))}
    async with node(NODE, place, server.url, own) as it:
        yield it


@asynccontextmanager
async def intruders(server: NatsServer) -> AsyncIterator[list[NatsBus]]:
    """Somebody with the bus password of the operator, and of a service."""
    buses = [await connect(server.url_of(user), f"intruder-{user}", timeout_s=30) for user in (OPERATOR, "standby")]
    try:
        yield buses
    finally:
        for bus in buses:
            await bus.close()


def job_of(folder: Path, name: str = "job-1") -> JobSpec:
    (folder / f"{name}.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    return JobSpec(
        name=name, script=str(folder / f"{name}.py"), nproc_per_node=1, cwd=str(folder), directory=str(folder)
    )


def order_of(job: JobSpec | None, generation: int, *, to: str = NODE, epoch: int = 1, port: int = 0) -> NodeOrder:
    placement = Placement(job=job, node_rank=0, master_addr="127.0.0.1", master_port=port) if job else None
    name = job.name if job else "job-1"
    return NodeOrder(node=to, epoch=epoch, generation=generation, job=name, placement=placement, cause=uuid7())


async def started(it: Node, generation: int) -> RanksStarted:
    return await it.heard.wait(RanksStarted, lambda event: event.generation == generation)


async def store_port(it: Node) -> int:
    return (await it.registered()).facts.store_ports[0]


def forgeries(order: AnyOrder) -> list[bytes]:
    """The order as everybody can write it who has not the key of the service that writes this kind."""
    writer = order.writer
    strangers = [private_keys("another cluster")[writer], *(PRIVATE[other] for other in SIGNERS if other != writer)]
    return [order.encode(), *(OrderSigner(writer, key).sign(order, system_now()) for key in strangers)]


async def test_what_no_service_signed_for_this_key_is_refused_whatever_kind_of_order_it_is(
    server: NatsServer, node_place: Path, tmp_path: Path
) -> None:
    async with agent(server, node_place) as it, intruders(server) as buses:
        port = await store_port(it)
        job, theirs = job_of(tmp_path), job_of(tmp_path, "theirs")
        given = order_of(job, 1, port=port)
        await it.put(signed(given))
        pids = (await started(it, 1)).ranks

        soon, submitted = system_now() + timedelta(minutes=5), 1
        common = {"id": uuid7(), "job": "job-1", "generation": 1, "until": soon}
        backup = BackupOrder(
            node=NODE, job="job-1", submitted_ms=submitted, world_size=1, generation=9, node_rank=0, nproc_per_node=1
        )
        evil: list[AnyOrder] = [
            order_of(theirs, 99, epoch=9, port=port),
            backup,
            TraceOrder(**common),
            SlowOrder(**common),
            CodeOrder(job="job-1", versions=("0" * 64,)),
        ]
        puts = [(order.bucket(), order.key, body) for order in evil for body in forgeries(order)]
        elsewhere = order_of(theirs, 99, to="n-2", epoch=9, port=port)
        # Signed by the right service, for another key: another node's order, and another kind.
        puts += [(given.bucket(), given.key, signed(elsewhere)), (given.bucket(), given.key, signed(backup))]
        puts += [(backup.bucket(), backup.key, signed(msgspec.structs.replace(backup, node="n-2")))]
        for number, (bucket, key, body) in enumerate(puts):
            subject, size = kv_subject(bucket, key), len(body)
            before = len(refused(it, subject))
            await buses[number % 2].put(bucket, key, body)
            await it.heard.until(lambda: len(refused(it, subject)) > before)  # noqa: B023
            assert refused(it, subject)[-1].body_bytes == size
        errors = {event.error for event in it.heard.all(MessageRejected)}
        assert any("it carries no signature" in error for error in errors)
        assert any("it is not signed by the controller for node.n-1" in error for error in errors)

        # The right order is obeyed after all that, and nothing else ever was.
        trace = TraceOrder(**{**common, "id": uuid7()})
        await it.bus.put(trace.bucket(), trace.key, signed(trace))
        assert (await it.heard.wait(StackDump)).trace == trace.id
        assert [event.ranks for event in it.heard.all(RanksStarted)] == [pids]
        assert len(it.heard.all(StackDump)) == 1
        assert not it.heard.all(RanksStopped) and not it.heard.all(CollectivesProfiled)
        assert not it.heard.all(CodeInPlace) and not it.heard.all(OrderRefused)
        assert not (it.directory / "logs" / "theirs").exists()
        await it.put(signed(order_of(job, 2, port=port)))
        await started(it, 2)


def refused(it: Node, subject: str) -> list[MessageRejected]:
    return it.heard.all(MessageRejected, lambda event: event.subject == subject)


async def test_an_old_order_that_is_brought_back_is_not_carried_out_again(
    server: NatsServer, node_place: Path, tmp_path: Path
) -> None:
    async with agent(server, node_place) as it, intruders(server) as (intruder, _):
        port = await store_port(it)
        old = signed(order_of(job_of(tmp_path), 1, port=port), system_now() - LONG_AGO + timedelta(minutes=1))
        # The node has no order yet: this one was signed before its agent's first start.
        await intruder.put("desired", f"node.{NODE}", old)
        refusal = await it.heard.wait(OrderRefused)
        assert (refusal.newest_epoch, refusal.newest_generation) == (0, 0)

        first = signed(order_of(job_of(tmp_path), 1, port=port))
        await it.put(first)
        await started(it, 1)
        await it.put(signed(order_of(None, 2)))
        await it.heard.wait(RanksStopped)

        await intruder.put("desired", f"node.{NODE}", first)
        await refusals(it, 2)
        await again(it, lambda: intruder.put("desired", f"node.{NODE}", first))
        await refusals(it, 3)

        # A node that has lost its memory as well, like a machine with a new disk, gets only what is signed now.
        await again(it, lambda: forgotten(it, intruder, old))
        await refusals(it, 4)
        assert it.heard.all(OrderRefused)[-1].newest_generation == 0
        assert len(it.heard.all(RanksStarted)) == 1
        await it.put(signed(order_of(job_of(tmp_path), 3, port=port)))
        await started(it, 3)


async def refusals(it: Node, count: int) -> None:
    await it.heard.until(lambda: len(it.heard.all(OrderRefused)) == count)


async def again(it: Node, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Start the agent again; `meanwhile` something happens."""
    it.kill_agent()
    await meanwhile()
    it.start()


async def forgotten(it: Node, intruder: NatsBus, old: bytes) -> None:
    for file in it.directory.glob("agent.db*"):
        file.unlink()
    await intruder.put("desired", f"node.{NODE}", old)
