"""Passwords are renewed and a node is revoked while a job trains."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import asyncpg
import pytest
from cluster import Cluster
from records import check_record, check_steps

from holdfast.bus import BusError
from holdfast.bus.accounts import node_user
from holdfast.bus.link import Link, address_of
from holdfast.bus.nats import connect
from holdfast.clock import system_now
from holdfast.embedded.control import PowerOn
from holdfast.embedded.errors import ControlRefused
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import SIGNERS, OrderSigner

pytestmark = pytest.mark.e2e


def secrets(cluster: Cluster) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(cluster.layout.secrets_file.read_bytes())
    return kept


def bus_url(cluster: Cluster, user: str) -> str:
    return f"nats://{user}:{secrets(cluster)['bus'][user]}@{address_of(cluster.info.nats_url)}"


def is_let_in(*urls: str) -> list[bool]:
    return asyncio.run(_are_let_in(urls))


async def _are_let_in(urls: tuple[str, ...]) -> list[bool]:
    found = []
    for url in urls:
        try:
            if url.startswith("nats"):
                await (await Link.open(url, "test")).close()
            else:
                await (await asyncpg.connect(url)).close()
        except (BusError, asyncpg.InvalidPasswordError):
            found.append(False)
        else:
            found.append(True)
    return found


def users(text: str) -> dict[str, dict[str, Any]]:
    return {user["name"]: user for user in json.loads(text)}


def recorded(cluster: Cluster, *users: str) -> list[tuple[str, str]]:
    """Return the recorded changes of just these users, in order: what was done, and the kind of secret."""
    found = cluster.query(
        "select change, kind from historian.credential_changes where users = $1 and by like '%(pid %' order by at",
        [*users],
    )
    return [(row["change"], row["kind"]) for row in found]


def reason(cluster: Cluster, node: str) -> str:
    """Return the reason that `holdfast nodes` shows for the state of a node."""
    shown = json.loads(cluster.command("nodes", "--json").stdout)
    return next(row["reason"] or "" for row in shown if row["node"] == node)


def test_passwords_are_renewed_while_a_job_trains(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    node = holdfast.members(job)[1]
    asked = (node, "controller", "historian", "reader", "operator")
    listed = users(holdfast.command("credentials", "--json").stdout)
    known = secrets(holdfast)
    children = {name: child.pid for name, child in holdfast.children().items()}
    ranks = job.pids()
    urls = [bus_url(holdfast, user) for user in (node_user(node), *asked[1:])]
    urls += [holdfast.info.database_urls[role] for role in ("controller", "historian", "reader")]
    assert is_let_in(*urls) == [True] * 8

    renewed = users(holdfast.command("credentials", "renew", *asked, "--json").stdout)

    assert is_let_in(*urls) == [False] * 8
    job.until_step(job.step() + 20)
    assert (job.pids(), job.generation(), holdfast.incidents(job)) == (ranks, 1, [])
    assert {name: child.pid for name, child in holdfast.children().items()} == children, "something started again"
    assert list(renewed) == list(asked)
    for user in asked[:3]:
        assert renewed[user]["connections"] and listed[user]["connections"], user
    holdfast.until("the renewal is recorded", lambda: recorded(holdfast, *asked) == [("renewed", "password")])
    # `holdfast run` follows the job with the new password of the operator.
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)

    shown = holdfast.command("credentials").stdout + holdfast.layout.log("supervisor").read_text()
    now = users(holdfast.command("credentials", "--json").stdout)
    since = {name: datetime.fromisoformat(user["since"]) for name, user in now.items()}
    assert min(since[user] for user in asked) > max(since[user] for user in now if user not in asked)
    for kept in (known, secrets(holdfast)):
        assert not [word for word in (*kept["bus"].values(), *kept["roles"].values()) if word in shown]


def test_keys_of_orders_are_replaced_while_a_job_trains(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    node = holdfast.members(job)[1]
    stolen = secrets(holdfast)["order_keys"]["controller"]
    children = {name: child.pid for name, child in holdfast.children().items()}
    ranks = job.pids()

    listed = users(holdfast.command("credentials", "renew", "keys", "--json").stdout)

    kept = secrets(holdfast)
    assert list(listed) == ["keys"] and not kept["retired_order_keys"]
    assert stolen not in kept["order_keys"].values()
    # An order by the stolen key: to run nothing, above all that the node has obeyed.
    order = NodeOrder(node=node, epoch=10**6, generation=99)
    forged = OrderSigner("controller", stolen).sign(order, system_now())
    asyncio.run(put(bus_url(holdfast, "operator"), order.key, forged))
    holdfast.until("the forged order is refused", lambda: len(refusals(holdfast, node)) == 1)
    assert "not signed by the controller" in refusals(holdfast, node)[0]["error"]
    job.until_step(job.step() + 20)
    assert (job.pids(), job.generation(), holdfast.incidents(job)) == (ranks, 1, [])
    assert {name: child.pid for name, child in holdfast.children().items()} == children, "something started again"

    # Orders by the new keys are obeyed, by an agent that has started again too.
    holdfast.until_mended(node, holdfast.kill(node))
    killed = job.kill_rank(3)
    job.until_step(killed.step + 5, generation=2)
    job.finish()
    check_record(holdfast, job)
    assert len(refusals(holdfast, node)) == 1
    assert recorded(holdfast, *SIGNERS) == [("renewed", "order_key")]


async def put(url: str, key: str, body: bytes) -> None:
    bus = await connect(url, "thief", timeout_s=30)
    await bus.put("desired", key, body)
    await bus.close()


def refusals(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """Return the messages that were rejected by an agent, its orders above all."""
    return cluster.query("select error from historian.dead_letters where node = $1", node)


def test_a_revoked_node_is_cut_off_and_its_job_goes_on_elsewhere(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    node = holdfast.members(job)[1]
    stolen = bus_url(holdfast, node_user(node))

    async def revoke() -> None:
        thief = await Link.open(stolen, "thief")
        try:
            await asyncio.to_thread(holdfast.command, "credentials", "revoke", node)
            assert thief.lost
        finally:
            await thief.close()

    asyncio.run(revoke())
    assert holdfast.children()[node].state == "revoked"
    assert is_let_in(stolen, bus_url(holdfast, node_user(node))) == [False, False]
    with pytest.raises(ControlRefused, match=f"holdfast credentials restore {node}"):
        holdfast.ask(PowerOn(node=node))
    job.until_step(30, generation=2)
    assert node not in holdfast.members(job)
    holdfast.until("the revocation is recorded", lambda: recorded(holdfast, node) == [("revoked", "password")])
    assert reason(holdfast, node).startswith("revoked by ")

    holdfast.command("credentials", "restore", node)
    assert is_let_in(stolen, bus_url(holdfast, node_user(node))) == [False, True]
    holdfast.until(f"{node} is a standby", lambda: holdfast.nodes()[node]["state"] == "standby")
    job.finish()
    check_record(holdfast, job)
    assert [change for change, _ in recorded(holdfast, node)] == ["revoked", "restored"]
    assert not reason(holdfast, node).startswith("revoked")
