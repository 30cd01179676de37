"""Users of the bus that change while others work: a renewed password, a node that is left out and comes back."""

from __future__ import annotations

import asyncio

import pytest
from bus_worlds import WITHIN_S, message, unique, until_connected, until_disconnected
from servers import NatsServer

from holdfast.bus import BusError
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect

pytestmark = pytest.mark.integration


async def test_a_renewed_password_cuts_its_user_and_nobody_else(guarded: NatsServer, operator: NatsBus) -> None:
    passwords, user = guarded.passwords(), "agent-n1"
    before = operator.connected_since
    node = await connect(lambda: guarded.url_of(user, passwords[user]), user, makes_streams=False, timeout_s=WITHIN_S)
    connected, old = node.connected_since, await Link.open(guarded.url_of(user), "stolen")
    try:
        passwords[user] = "renewed"
        await guarded.reload(passwords, guarded.nodes)
        async with asyncio.timeout(WITHIN_S):
            await old.ended.wait()
        with pytest.raises(BusError, match=r"refuses these credentials|no NATS server answers"):
            await Link.open(guarded.url_of(user), "stolen")
        async with asyncio.timeout(WITHIN_S):
            while node.connected_since in (None, connected):  # noqa: ASYNC110 - the contract offers no event for it
                await asyncio.sleep(0.01)
        await _is_recorded(node, "n1")
        assert operator.connected_since == before
    finally:
        await node.close()
        await guarded.reload(guarded.passwords(), guarded.nodes)


async def test_a_node_that_is_left_out_is_cut_and_comes_back(guarded: NatsServer, node: NatsBus) -> None:
    before = node.connected_since
    out = await connect(guarded.url_of("agent-n2"), "agent-n2", makes_streams=False, timeout_s=WITHIN_S)
    try:
        await guarded.reload(guarded.passwords(), ("n1",))
        await until_disconnected(out)
        with pytest.raises(BusError, match=r"refuses these credentials|no NATS server answers"):
            await Link.open(guarded.url_of("agent-n2"), "revoked")
        await _is_recorded(node, "n1")
    finally:
        # The first reload makes the account; streams take its messages from the second one on.
        for _ in range(2):
            await guarded.reload(guarded.passwords(), guarded.nodes)
    await until_connected(out)
    await _is_recorded(out, "n2")
    assert node.connected_since == before
    await out.close()


async def _is_recorded(bus: NatsBus, node: str) -> None:
    await bus.publish_all([message(f"holdfast.v1.evidence.process_exited.job.{node}", b"{}", unique("id"))])
