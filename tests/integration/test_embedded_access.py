"""Passwords of an embedded cluster: renewed, revoked, and whole after a supervisor that died in between."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import asyncpg
import msgspec
import pytest
from embedded_running import Cluster, cluster, until

from holdfast.bus import BusError
from holdfast.bus.link import Link, address_of
from holdfast.bus.nats import connect
from holdfast.embedded.control import PowerOn, Renew, Restore, Revoke, Users, ask
from holdfast.embedded.errors import ControlRefused, EmbeddedError
from holdfast.embedded.layout import ClusterLayout
from holdfast.embedded.servers.credentials import Credentials, role_name
from holdfast.events import CredentialsChanged, decode
from holdfast.orders.signatures import SIGNERS, public_keys
from holdfast.subjects import type_filter

pytestmark = pytest.mark.integration


def kept(layout: ClusterLayout) -> Credentials:
    return msgspec.json.decode(layout.secrets_file.read_bytes(), type=Credentials)


def opens(running: Cluster, credentials: Credentials, user: str) -> tuple[bool, bool | None]:
    """Return whether the password of a user opens the bus, and the database if the user has a role there."""
    return asyncio.run(_opens(running, credentials, user))


async def _opens(running: Cluster, credentials: Credentials, user: str) -> tuple[bool, bool | None]:
    bus = database = True
    try:
        url = f"nats://{user}:{credentials.bus[user]}@{address_of(running.info.nats_url)}"
        await (await Link.open(url, "test")).close()
    except BusError:
        bus = False
    if (role := role_name(user)) not in credentials.roles:
        return bus, None
    try:
        there = running.info.database_urls["admin"].rpartition("@")[2]
        await (await asyncpg.connect(f"postgresql://{role}:{credentials.roles[role]}@{there}")).close()
    except asyncpg.InvalidAuthorizationSpecificationError:  # wrong, or the role is closed
        database = False
    return bus, database


def test_a_revoked_node_stays_out_until_it_is_restored(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "2") as running:
        first = kept(running.layout)
        assert opens(running, first, "agent-node-1") == (True, None)
        assert ask(running.layout, Revoke(node="node-1")).killed == 5
        second = kept(running.layout)
        assert running.layout.refused_nodes.read_text() == "node-1\n"
        for known in (first, second):
            assert opens(running, known, "agent-node-1") == (False, None)
        assert opens(running, first, "agent-node-0") == (True, None)
        with pytest.raises(ControlRefused, match="node-1 is revoked already, since 20"):
            ask(running.layout, Revoke(node="node-1"))
        assert running.end() == 0
    with cluster(tmp_path) as again:
        assert again.child("node-1").state == "revoked" and again.child("node-0").state == "ready"
        assert kept(again.layout) == second
        assert opens(again, second, "agent-node-1") == (False, None)
        with pytest.raises(ControlRefused, match="`holdfast credentials restore node-1` lets it in again"):
            ask(again.layout, PowerOn(node="node-1"))
        ask(again.layout, Restore(node="node-1"))
        # Its certificates from before stay refused.
        since = second.revoked["node-1"].isoformat()
        assert again.layout.refused_nodes.read_text() == f"node-1 {since}\n"
        assert again.child("node-1").state == "ready"
        assert opens(again, first, "agent-node-1") == (False, None)
        assert opens(again, kept(again.layout), "agent-node-1") == (True, None)
        with pytest.raises(ControlRefused, match="node-1 is not revoked"):
            ask(again.layout, Restore(node="node-1"))


def test_a_supervisor_that_dies_during_a_change_leaves_a_cluster_that_starts(tmp_path: Path) -> None:
    for frozen in ("postgres", "nats"):
        with cluster(tmp_path, "--nodes", "1") as first:
            before = kept(first.layout)
            die_during_a_change(first, frozen)
            assert set(kept(first.layout).retired_order_keys) == keys_of(before)
        with cluster(tmp_path) as second:
            after = kept(second.layout)
            for user in ("controller", "reader", "operator", "agent-node-0"):
                has_role = True if user in ("controller", "reader") else None
                assert opens(second, before, user) == (False, False if has_role else None), user
                assert opens(second, after, user) == (True, has_role), user
            assert [opens_as_admin(second, known) for known in (before, after)] == [False, True]
            assert (after.postgres_before, kept(second.layout).postgres_before) == ("", "")
            events = asyncio.run(published(second, 2))
            until(lambda: not kept(second.layout).unrecorded)
            assert [(event.change, event.kind, event.by) for event in events] == [
                ("renewed", "password", "me"),
                ("renewed", "order_key", "me"),
            ]
            assert {"controller", "operator", "node-0"} < set(events[0].users)
            until(lambda: not kept(second.layout).retired_order_keys)
            until(lambda: second.layout.order_keys.read_text().count(":") == len(SIGNERS))
            assert set(second.layout.order_keys.read_text().split()) == keys_of(after)
            assert not keys_of(before) & keys_of(after)


def keys_of(known: Credentials) -> set[str]:
    return set(public_keys(known.order_keys).split())


def opens_as_admin(running: Cluster, known: Credentials) -> bool:
    async def try_it() -> bool:
        there = running.info.database_urls["admin"].rpartition("@")[2]
        try:
            await (await asyncpg.connect(f"postgresql://postgres:{known.postgres}@{there}")).close()
        except asyncpg.InvalidPasswordError:
            return False
        return True

    return asyncio.run(try_it())


async def published(running: Cluster, count: int) -> list[CredentialsChanged]:
    """Make the streams, as services do, and return the first events about credentials."""
    bus = await connect(running.info.nats_url, "test", timeout_s=20)
    found: list[CredentialsChanged] = []
    try:
        async with asyncio.timeout(20):
            async for delivery in bus.consume("DECISIONS", "test", [type_filter(CredentialsChanged)]):
                event = decode(delivery.body)
                assert isinstance(event, CredentialsChanged)
                found.append(event)
                await delivery.ack()
                if len(found) == count:
                    return found
    finally:
        await bus.close()
    raise AssertionError(found)


def die_during_a_change(running: Cluster, frozen: str) -> None:
    """Kill the supervisor at the step that needs this server, with all steps before it done."""
    layout, before = running.layout, kept(running.layout)
    os.kill(running.pid(frozen), signal.SIGSTOP)
    asking = threading.Thread(target=renew_all, args=(layout,))
    asking.start()
    configuration = layout.nats / "nats.conf"
    until(lambda: kept(layout) != before)
    if frozen == "nats":
        until(lambda: kept(layout).bus["operator"] in configuration.read_text())
    else:
        assert kept(layout).bus["operator"] not in configuration.read_text()
    running.process.kill()
    running.process.wait()
    asking.join()


def renew_all(layout: ClusterLayout) -> None:
    with suppress(EmbeddedError):
        ask(layout, Renew(users=[], by="me"))


def test_a_change_that_the_database_does_not_take_is_completed_later(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        before = kept(running.layout)
        rename_role(running, "holdfast_reader", "away")
        with pytest.raises(ControlRefused, match=r"recorded and not in force yet, .* tried again every second"):
            ask(running.layout, Renew(users=["historian", "reader"]))
        assert opens(running, before, "historian") == (True, False), "its role is closed"
        assert opens(running, kept(running.layout), "historian") == (False, False)
        rename_role(running, "away", "holdfast_reader")
        assert kept(running.layout).roles["holdfast_reader"] not in running.layout.log("postgres").read_text()
        # No command is needed: a role that is closed keeps its service away.
        for user in ("historian", "reader"):
            until(lambda user=user: opens(running, kept(running.layout), user) == (True, True))
            assert opens(running, before, user) == (False, False)
        ask(running.layout, Renew(users=["operator"]))
        assert opens(running, before, "operator") == (False, None)
        assert running.info.nats_url.startswith(f"nats://operator:{kept(running.layout).bus['operator']}@")


def test_roles_that_a_dead_postgres_left_closed_are_opened_when_it_is_back(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        before, killed = kept(running.layout), running.pid("postgres")
        closed = threading.Thread(target=asyncio.run, args=(kill_when_closed(running, killed),))
        closed.start()
        with pytest.raises(ControlRefused, match="recorded and not in force yet"):
            ask(running.layout, Renew(users=["controller", "reader"]))
        closed.join()
        running.mended("postgres", killed)
        for user in ("controller", "reader"):
            until(lambda user=user: opens(running, kept(running.layout), user) == (True, True))
            assert opens(running, before, user) == (False, False)


async def kill_when_closed(running: Cluster, postgres: int) -> None:
    """Hold the reader's role, so that its renewal waits, and kill the server once the controller's is closed."""
    admin = await asyncpg.connect(running.info.database_urls["admin"])
    await admin.execute("begin; alter role holdfast_reader set jit = off")
    is_open = "select rolcanlogin from pg_roles where rolname = 'holdfast_controller'"
    while await admin.fetchval(is_open):  # noqa: ASYNC110 - the server sends no event
        await asyncio.sleep(0.01)
    os.kill(postgres, signal.SIGKILL)
    admin.terminate()


def test_the_administrators_password_is_renewed_while_the_database_is_in_use(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        before = kept(running.layout)
        asyncio.run(ended_by(running, Renew(users=["admin"])))
        after = kept(running.layout)
        assert [opens_as_admin(running, known) for known in (before, after)] == [False, True]
        assert running.info.database_urls["admin"].startswith(f"postgresql://postgres:{after.postgres}@")
        assert msgspec.structs.replace(after, postgres=before.postgres, since=before.since, unrecorded=()) == before
        # The supervisor knows a server that starts again by the new password.
        killed = running.pid("postgres")
        os.kill(killed, signal.SIGKILL)
        running.mended("postgres", killed)
        for word in (before.postgres, after.postgres):
            assert word not in running.layout.log("postgres").read_text()


async def ended_by(running: Cluster, request: Renew) -> None:
    """Make the request; a session of the administrator that was open before must end."""
    session = await asyncpg.connect(running.info.database_urls["admin"])
    ended = asyncio.Event()
    session.add_termination_listener(lambda _: ended.set())
    await asyncio.to_thread(ask, running.layout, request)
    # A query at the moment of the end may be an internal error of the client.
    await asyncio.wait_for(ended.wait(), 30.0)


def rename_role(running: Cluster, old: str, new: str) -> None:
    async def rename() -> None:
        connection = await asyncpg.connect(running.info.database_urls["admin"])
        await connection.execute(f"alter role {old} rename to {new}")
        await connection.close()

    asyncio.run(rename())


def test_users_are_listed_without_their_passwords_and_unknown_ones_refused(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        reply = ask(running.layout, Users())
        assert [(user.name, user.kind) for user in reply.users] == [
            *((name, "service") for name in ("controller", "analyzer", "standby", "ckpt", "historian")),
            ("operator", "operator"),
            ("reader", "reader"),
            ("node-0", "node"),
            ("admin", "admin"),
            ("keys", "keys"),
        ]
        assert all(user.since is not None and user.revoked is None for user in reply.users)
        text, known = msgspec.json.encode(reply).decode(), kept(running.layout)
        assert not [word for word in (*known.bus.values(), *known.roles.values(), known.postgres) if word in text]
        for request in (Renew(users=["nobody"]), Revoke(node="controller"), Restore(node="node-9")):
            with pytest.raises(ControlRefused, match=r"there is no (user|node) '(nobody|controller|node-9)'; the"):
                ask(running.layout, request)
        assert kept(running.layout) == known

        live = Cluster(tmp_path, "--new-passwords")
        assert live.wait() == 1
        assert "already runs" in live.lines[-1] and "`holdfast credentials renew --all`" in live.lines[-1]
        assert kept(running.layout) == known
        running.end()
    with cluster(tmp_path, "--new-passwords") as renewed:
        assert opens(renewed, known, "reader") == (False, False)
        assert opens(renewed, kept(renewed.layout), "reader") == (True, True)
