"""Orders on a real bus when the keys that sign them are replaced, with services that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.bus.nats import NatsBus, connect
from holdfast.clock import system_now
from holdfast.daemon.service_shell import answer_pings
from holdfast.embedded.servers import order_renewal
from holdfast.embedded.servers.order_renewal import change_over
from holdfast.fresh_ids import uuid7
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import Order
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import SIGNERS, OrderSigner, public_key
from holdfast.orders.trace import TraceOrder
from tests.integration.servers import NatsServer
from tests.scenes.order_keys import KEYS, PRIVATE, private_keys

pytestmark = pytest.mark.integration

NEW = private_keys("renewed")
PRESENT = {service: public_key(key) for service, key in NEW.items()}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    server.stop()


async def put(bus: NatsBus, order: Order, keys: dict[str, str]) -> tuple[str, str]:
    """Put an order that these keys have signed; return its place."""
    body = OrderSigner(order.writer, keys[order.writer]).sign(order, system_now())
    await bus.put(order.bucket(), order.key, body)
    return order.bucket(), order.key


async def test_what_services_do_not_sign_again_is_removed_and_nothing_else(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await connect(server.url, "test", timeout_s=20)
    until = system_now() + timedelta(minutes=5)
    backup = BackupOrder(node="a", job="job", submitted_ms=1, world_size=1, generation=1, node_rank=0, nproc_per_node=1)
    old = [
        await put(bus, order, PRIVATE)
        for order in (
            NodeOrder(node="idle", epoch=1, generation=1),
            backup,
            CodeOrder(job="job", versions=("0" * 64,)),
            TraceOrder(id=uuid7(), job="job", generation=1, until=until),
        )
    ]
    kept = [
        await put(bus, NodeOrder(node="signed-again", epoch=1, generation=1), NEW),
        # It is worth nothing, and the service repairs it.
        await put(bus, NodeOrder(node="forged", epoch=1, generation=1), private_keys("another cluster")),
    ]
    in_force = NodeOrder(node="in-force", epoch=1, generation=1)
    await put(bus, in_force, PRIVATE)

    async def sign_again() -> bytes:
        kept.append(await put(bus, in_force, NEW))
        return PRESENT["controller"].encode()

    async def not_now() -> bytes:
        return b""

    # The analyzer is of an older release, the ckpt coordinator cannot now.
    pings = [
        asyncio.create_task(answer_pings(bus, "controller", sign_again=sign_again)),
        asyncio.create_task(answer_pings(bus, "analyzer")),
        asyncio.create_task(answer_pings(bus, "ckpt-coordinator", sign_again=not_now)),
    ]
    monkeypatch.setattr(order_renewal, "SIGNED_WITHIN_S", 2.0)
    assert await change_over(server.url, SIGNERS, PRESENT, KEYS) == ["analyzer", "ckpt"]
    assert [await bus.get(*place) for place in old] == [None] * 4
    assert len(kept) == 3
    assert None not in [await bus.get(*place) for place in kept]
    for task in pings:
        task.cancel()
    await asyncio.wait(pings)
    await bus.close()
