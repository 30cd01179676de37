"""Access to a running cluster: passwords that are renewed, nodes that are revoked.

All follows from `secrets.json`: the roles of the database, the users of nats-server, and the files in which services
and agents find their addresses. They read these for every connection, so none of them starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.bus import BusError, event_message
from holdfast.bus.accounts import OPERATOR, READER, SERVICES
from holdfast.bus.nats import connect
from holdfast.embedded.control import UserStatus
from holdfast.embedded.errors import ControlRefused, EmbeddedError
from holdfast.embedded.layout import ClusterLayout, Ports, write_private
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.servers import credentials as passwords
from holdfast.embedded.servers import nats_monitor
from holdfast.embedded.servers.credentials import ADMIN, KEYS
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.order_renewal import change_over
from holdfast.embedded.servers.readiness import nats_admits
from holdfast.events import CredentialsChanged
from holdfast.network.refusals import Refusals
from holdfast.orders.signatures import SIGNERS, OrderKeys, parsed_keys, public_key
from holdfast.store import StoreUnavailable
from holdfast.store.connections import NotMigrated
from holdfast.store.passwords import end_sessions, renew_passwords, set_passwords

CONNECTED_WITHIN_S = 15.0
"""Longest wait for a process to connect with its new password; it goes on trying after that."""
_LOOK_EVERY_S = 0.05
_CONNECT_WITHIN_S = 5.0
_AGAIN_S = 1.0
_NO_USERS = (ADMIN, KEYS)
"""Names among those of users that are no users of the bus."""


class Access:
    """The passwords of a cluster and all that is made from them. Call `apply` after each change."""

    def __init__(self, layout: ClusterLayout, nodes: Iterable[str], ports: Ports, host: str, *, renew: bool) -> None:
        self._layout = layout
        self._ports = ports
        self._host = host
        self._monitor_url = f"http://{passwords.HOST}:{ports.nats_monitor}"
        self._behind: set[str] = set()
        """Users whose change is not in force."""
        self.changing = asyncio.Lock()
        """Held during a change and what follows from it."""
        self._noted = asyncio.Event()
        self._retiring = asyncio.Event()
        self._failed = asyncio.Event()
        self.credentials = passwords.load_or_create(layout, nodes, renew=renew)
        self.hand_out(nodes)

    @property
    def nats_url(self) -> str:
        """The bus as the operator sees it."""
        return passwords.nats_url(self.credentials, self._ports, self._host)

    @property
    def nats_monitor_url(self) -> str:
        return self._monitor_url

    @property
    def database_urls(self) -> dict[str, str]:
        return passwords.database_urls(self.credentials, self._ports)

    # --- changes of secrets.json -----------------------------------------------------------------

    def renew(self, names: Collection[str], by: str) -> None:
        now, changed, users = datetime.now(UTC), self.credentials, [name for name in names if name != KEYS]
        if ADMIN in names:
            changed = passwords.renewed_admin(changed, now)
        if users:
            changed = passwords.noted(passwords.renewed(changed, _users(names), now), "renewed", users, now, by=by)
        if KEYS in names:
            renewed = passwords.renewed_keys(changed, now)
            changed = passwords.noted(renewed, "renewed", SIGNERS, now, kind="order_key", by=by)
        self._change(changed)

    def revoke(self, node: str, by: str) -> None:
        now = datetime.now(UTC)
        changed = passwords.revoked(self.credentials, node, now)
        self._change(passwords.noted(changed, "revoked", [node], now, by=by))
        self._write_refused()

    def restore(self, node: str, by: str) -> None:
        changed = passwords.restored(self.credentials, node)
        self._change(passwords.noted(changed, "restored", [node], datetime.now(UTC), by=by))

    def add(self, nodes: Iterable[str]) -> None:
        """Make passwords for new nodes."""
        self.credentials = passwords.load_or_create(self._layout, nodes)

    def opens_with(self, password: str) -> None:
        """Note the administrator's password of a database that was made elsewhere; `settle_admin` replaces it."""
        self._change(msgspec.structs.replace(self.credentials, postgres_before=password))

    def _change(self, changed: passwords.Credentials) -> None:
        passwords.save(self._layout, changed)
        self.credentials = changed
        self._noted.set()

    async def record(self) -> None:
        """Publish the events about changes until cancelled. They are kept until the bus has confirmed them."""
        self._noted.set()
        while True:
            await self._noted.wait()
            try:
                await self._publish(self.credentials.unrecorded)
            except BusError:
                # Services make the streams, after the server has started.
                await asyncio.sleep(_AGAIN_S)
            else:
                if not self.credentials.unrecorded:
                    self._noted.clear()

    async def _publish(self, events: Collection[CredentialsChanged]) -> None:
        if not events:
            return
        bus = await connect(lambda: self.nats_url, "supervisor", makes_streams=False, timeout_s=_CONNECT_WITHIN_S)
        try:
            for event in events:
                await bus.publish(event_message(event))
        finally:
            await bus.close()
        left = tuple(event for event in self.credentials.unrecorded if event not in events)
        self._change(msgspec.structs.replace(self.credentials, unrecorded=left))

    # --- what follows from it --------------------------------------------------------------------

    def hand_out(self, nodes: Iterable[str]) -> None:
        """Write the addresses and keys of services and agents, each in its own file."""
        urls = self.database_urls
        self._write_refused()
        for service in SERVICES:
            _write(self._layout.database_address(service), urls[service])
        for name in (*SERVICES, *nodes):
            user = passwords.bus_user(name)
            url = passwords.nats_url(self.credentials, self._ports, self._host, user)
            _write(self._layout.bus_address(name), url)
        # No service signs before agents can recognize its signature.
        _write(self._layout.order_keys, passwords.accepted_keys(self.credentials))
        for service, key in self.credentials.order_keys.items():
            _write(self._layout.order_key(service), key)

    def _write_refused(self) -> None:
        refused = {**self.credentials.readmitted, **dict.fromkeys(self.credentials.revoked)}
        _write(self._layout.refused_nodes, str(Refusals(refused)))

    def nats(self, nodes: Iterable[str]) -> ChildSpec:
        """Write the configuration of nats-server, with the users that it lets in; return it as a child."""
        return nats_spec(
            self._layout.nats,
            port=self._ports.nats,
            monitor_port=self._ports.nats_monitor,
            passwords=self.credentials.bus,
            nodes=self.credentials.admitted(nodes),
            host=self._host,
        )

    async def apply(
        self, nodes: Collection[str], names: Collection[str], server: Child, *, is_new: bool = False
    ) -> None:
        """Bring files and servers up to date; what was opened with an old password of `names` ends. `is_new`: a name
        is that of a node for which nats-server has no account.

        What fails is done later by `keep_applying`. Raises EmbeddedError if a server does not follow.
        """
        try:
            await self._apply(nodes, names, server, is_new=is_new)
        except EmbeddedError:
            self._failed.set()
            raise

    async def keep_applying(self, nodes: Callable[[], Collection[str]], server: Child) -> None:
        """Complete changes that a server did not take, until cancelled: roles of the database may be closed meanwhile,
        so that no service can connect.
        """
        while True:
            await self._failed.wait()
            await asyncio.sleep(_AGAIN_S)
            async with self.changing:
                self._failed.clear()
                with suppress(EmbeddedError):  # It is tried again.
                    await self.apply(nodes(), (), server, is_new=True)

    async def _apply(self, nodes: Collection[str], names: Collection[str], server: Child, *, is_new: bool) -> None:
        self._behind.update(_users(names))
        await self.settle_admin()
        if not self._behind:
            self.hand_out(nodes)
            return
        roles = passwords.roles_of(self._behind)
        admin = self.database_urls["admin"]
        try:
            if roles:
                await renew_passwords(admin, {role: self.credentials.roles[role] for role in roles})
            self.hand_out(nodes)
            if roles:
                await end_sessions(admin, roles)
        except (StoreUnavailable, NotMigrated) as error:
            raise ControlRefused(
                f"the change is recorded and not in force yet, for the database does not take it: {error}. It is tried "
                "again every second; `holdfast status` shows whether postgres is ready"
            ) from error
        # The child's probe logs in as the operator, whose password may have changed.
        server.spec = self.nats(nodes)
        # The first reload makes a new account. Only from the second one on do streams take its messages.
        for _ in range(2 if is_new else 1):
            if server.record is not None:  # Else it is about to start, and reads its configuration then.
                await nats_monitor.reload(self._monitor_url, server.record.pid)
        user = next((passwords.bus_user(name) for name in self.credentials.admitted(_users(names))), OPERATOR)
        await nats_admits(self._host, self._ports.nats, user=user, password=self.credentials.bus[user])
        self._behind.clear()

    async def settle_admin(self) -> None:
        """Complete a change of the administrator's password; sessions that were opened with the old one end.

        Raises ControlRefused if the database does not take it now.
        """
        known = self.credentials
        if not known.postgres_before:
            return
        old = passwords.database_urls(msgspec.structs.replace(known, postgres=known.postgres_before), self._ports)
        try:
            with suppress(NotMigrated):  # It is refused, so the new one is in force.
                await set_passwords(old["admin"], {"postgres": known.postgres})
            await end_sessions(self.database_urls["admin"], ["postgres"])
        except (StoreUnavailable, NotMigrated) as error:
            raise ControlRefused(
                f"the administrator's new password is recorded and not in force yet: {error}. It is tried again every "
                "second; `holdfast status` shows whether postgres is ready"
            ) from error
        self._change(msgspec.structs.replace(known, postgres_before=""))

    async def retire_keys(self, nodes: Collection[str], services: Iterable[str]) -> list[str]:
        """End replaced keys of orders, once these services have signed again. Return those that have not in time.

        What fails is done later by `keep_retiring`. Raises ControlRefused if the bus is not there.
        """
        if not self.credentials.retired_order_keys:
            return []
        retired = OrderKeys(parsed_keys("\n".join(self.credentials.retired_order_keys)))
        public = {service: public_key(key) for service, key in self.credentials.order_keys.items()}
        try:
            late = await change_over(self.nats_url, [it for it in services if it in SIGNERS], public, retired)
        except BusError as error:
            self._retiring.set()
            raise ControlRefused(
                f"services have new keys, and the old ones count until the bus is back: {error}"
            ) from error
        self._change(msgspec.structs.replace(self.credentials, retired_order_keys=()))
        self.hand_out(nodes)
        return late

    async def keep_retiring(self, nodes: Callable[[], Collection[str]], services: Collection[str]) -> None:
        """Complete changes of keys that were begun, also by a supervisor before this one, until cancelled."""
        self._retiring.set()
        while True:
            await self._retiring.wait()
            self._retiring.clear()
            async with self.changing:
                with suppress(ControlRefused):  # It is tried again.
                    await self.retire_keys(nodes(), services)
            await asyncio.sleep(_AGAIN_S)

    # --- what is ---------------------------------------------------------------------------------

    def known(self, names: Collection[str], nodes: Collection[str]) -> list[str]:
        """Return `names`, all if there are none. Raises ControlRefused if one is unknown."""
        every = passwords.names(nodes)
        if unknown := next((name for name in names if name not in every), None):
            raise ControlRefused(f"there is no user {unknown!r}; the users are {', '.join(every)}")
        return list(dict.fromkeys(names)) or every

    async def statuses(self, names: Iterable[str]) -> list[UserStatus]:
        """Return what is known about users, without their passwords."""
        connections = await nats_monitor.connections(self._monitor_url, self.credentials.since)
        return [
            UserStatus(
                name=name,
                kind="service" if name in SERVICES else name if name in (OPERATOR, READER, *_NO_USERS) else "node",
                since=self.credentials.since.get(name if name in _NO_USERS else passwords.bus_user(name)),
                revoked=self.credentials.revoked.get(name),
                connections=connections.get(passwords.bus_user(name), 0),
            )
            for name in names
        ]

    async def until_connected(self, names: Collection[str]) -> list[str]:
        """Wait until these processes have connected to the bus. Return those that have not within
        `CONNECTED_WITHIN_S`.
        """
        late = list(names)
        try:
            async with asyncio.timeout(CONNECTED_WITHIN_S):
                # The server sends no event for it.
                while late := [  # noqa: ASYNC110
                    user.name for user in await self.statuses(names) if not user.connections
                ]:
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            return late
        return []


def _users(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in _NO_USERS]


def _write(path: Path, text: str) -> None:
    content = text.encode()
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    write_private(path, content, durable=False)
