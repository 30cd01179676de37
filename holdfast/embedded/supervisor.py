"""The supervisor of an embedded cluster: starts everything in order, keeps it running, stops it in order."""

import asyncio
import datetime
import importlib.metadata
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from holdfast.bus.accounts import node_user
from holdfast.embedded import fabric
from holdfast.embedded.control import (
    AddNode,
    AnyRequest,
    ChildStatus,
    ControlServer,
    PowerOff,
    PowerOn,
    Reply,
    Status,
    Stop,
)
from holdfast.embedded.errors import ControlRefused, EmbeddedError
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Fabric, Ports
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.processes.leftovers import clear_node, end_leftovers, free_ledgers
from holdfast.embedded.processes.logfile import RotatingLog
from holdfast.embedded.servers import credentials as passwords
from holdfast.embedded.servers import nats_monitor
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.nats_disk import restart_after_write_errors
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import clear_stale_pid, ensure_database, initialise, postgres_spec, programs
from holdfast.embedded.servers.readiness import nats_admits
from holdfast.embedded.services import ClusterPlan
from holdfast.store.migrate import UnknownRevision

DEFAULT_NODES = 4


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of `holdfast up`. None means as in the last run, or the default on a first start."""

    nodes: int | None = None
    postgres_port: int | None = None
    nats_port: int | None = None
    allow_faults: bool = False
    """`holdfast inject` may break things."""
    new_passwords: bool = False
    """All users get new passwords."""
    namespaces: bool = False
    """Each node gets a separate network."""


class Supervisor:
    """One run of one cluster. `tell` receives a line of text for every event."""

    def __init__(
        self, layout: ClusterLayout, plan: ClusterPlan, options: ClusterOptions, tell: Callable[[str], None]
    ) -> None:
        self._layout = layout
        self._plan = plan
        self._options = options
        self._tell = tell
        self._servers: dict[str, Child] = {}
        self._services: dict[str, Child] = {}
        self._nodes: dict[str, Child] = {}
        self._runs: list[asyncio.Task[None]] = []
        self._log: RotatingLog | None = None
        self._stop_asked = asyncio.Event()
        self._failure: EmbeddedError | None = None
        self._ready = False

    async def run(self, on_ready: Callable[[ClusterInfo], None]) -> None:
        """Run the cluster until `interrupt` or a Stop request; `on_ready` is called once all of it is up. Raises
        ClusterAlreadyRunning if the directory is in use, StartFailed or another EmbeddedError if the cluster cannot be
        started. However it ends, no process is left and the data can be used again.
        """
        layout = self._layout
        layout.create(self._plan.ranks_user)
        with layout.lock():
            before = layout.remembered()
            nodes = self._choose_nodes(before)
            self._log = RotatingLog(layout.log("supervisor"))
            if before is not None:
                for name in await asyncio.to_thread(end_leftovers, before):
                    self._report(f"{name} was left by a supervisor that died; stopped it")
                if before.fabric is not None:
                    await asyncio.to_thread(fabric.remove, before.fabric)
            given = {"postgres": self._options.postgres_port, "nats": self._options.nats_port}
            with reserve_ports(given, None if before is None else before.ports) as ports:
                renew = self._options.new_passwords and before is not None
                self._passwords = passwords.load_or_create(layout, nodes, renew=renew)
                self._info = self._describe(ports, nodes, None if before is None else before.fabric)
                self._report(f"cluster in {layout.root}, supervisor pid {os.getpid()}")
                try:
                    if self._info.fabric is not None:
                        await asyncio.to_thread(fabric.build, self._info.fabric)
                    await self._run_children(on_ready)
                finally:
                    # Processes are left only after a crash of this process.
                    for node in self._nodes:
                        clear_node(layout, node)
                        free_ledgers(layout, node)
                    if self._info.fabric is not None:
                        fabric.remove(self._info.fabric)
                    self._info = msgspec.structs.replace(self._info, pid=None, children={})
                    layout.write_info(self._info)
                if self._failure is not None:
                    self._report(f"not started: {self._failure}", tell=False)
                    raise self._failure

    def interrupt(self) -> None:
        """Request an orderly stop; the second time, an immediate one."""
        if not self._stop_asked.is_set():
            self._stop_asked.set()
            return
        self._report("forced: killing everything")
        for child in self._all():
            child.kill()

    async def _run_children(self, on_ready: Callable[[ClusterInfo], None]) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._record()
            async with ControlServer(self._layout, self._tasks, self._answer):
                starting = self._tasks.create_task(self._start(on_ready), name="start")
                await self._stop_asked.wait()
                starting.cancel()
                await asyncio.wait([starting])
                await self._end_all()
            for run in self._runs:
                run.cancel()

    async def _start(self, on_ready: Callable[[ClusterInfo], None]) -> None:
        try:
            await self._start_servers()
            await self._bring_up(self._services, self._plan.services(self._layout, self._info, self._passwords.bus))
            await self._bring_up(self._nodes, [self._agent(node) for node in self._info.nodes])
        except EmbeddedError as failure:
            self._failure = failure
            self._stop_asked.set()
        else:
            self._ready = True
            on_ready(self._info)

    async def _start_servers(self) -> None:
        directory, ports = self._layout.postgres, self._info.ports
        identity = choose_identity(programs() / "postgres", directory)
        password = self._passwords.postgres
        log = self._layout.log("postgres")
        await initialise(directory, password=password, identity=identity, log=log)
        clear_stale_pid(directory)
        spec = postgres_spec(directory, port=ports.postgres, password=password, identity=identity)
        await self._bring_up(self._servers, [spec])
        await ensure_database(ports.postgres, password)
        try:
            await asyncio.to_thread(self._plan.migrate, self._info.database_urls["admin"], self._passwords.roles)
        except UnknownRevision as error:
            raise EmbeddedError(str(error)) from error
        self._report("database up to date")
        await self._bring_up(self._servers, [self._nats()])
        watch = restart_after_write_errors(
            self._servers["nats"], self._info.nats_monitor_url, self._layout.nats, self._report
        )
        self._runs.append(self._tasks.create_task(watch, name="disk of nats"))

    def _nats(self) -> ChildSpec:
        ports = self._info.ports
        return nats_spec(
            self._layout.nats,
            port=ports.nats,
            monitor_port=ports.nats_monitor,
            passwords=self._passwords.bus,
            nodes=self._info.nodes,
            host=self._nats_host(self._info.fabric),
        )

    async def _admit(self, node: str) -> None:
        """Give a new node its user on the bus."""
        self._passwords = passwords.load_or_create(self._layout, self._info.nodes)
        self._nats()
        server = self._servers["nats"].record
        if server is not None:  # Else it is about to start, and reads its configuration then.
            # The first reload makes the account. Only from the second one on do streams take its messages.
            for _ in range(2):
                await nats_monitor.reload(self._info.nats_monitor_url, server.pid)
        ports, user = self._info.ports, node_user(node)
        host = self._nats_host(self._info.fabric)
        await nats_admits(host, ports.nats, user=user, password=self._passwords.bus[user])

    def _agent(self, node: str) -> ChildSpec:
        self._layout.node(node).mkdir(mode=0o700, exist_ok=True)
        if self._info.fabric is not None:
            fabric.add_node(self._info.fabric, node)
        return self._plan.agent(self._layout, self._info, self._passwords.bus, node)

    async def _bring_up(self, kind: dict[str, Child], specs: Iterable[ChildSpec]) -> None:
        """Start children concurrently and wait until all are ready. Raises StartFailed."""
        started = []
        for spec in specs:
            child = Child(spec, self._layout.log(spec.name), self._changed)
            kind[spec.name] = child
            self._runs.append(self._tasks.create_task(child.run(), name=f"child {spec.name}"))
            child.switch_on()
            started.append(child)
        for child in started:
            await child.until_ready()

    async def _end_all(self) -> None:
        """Stop agents first, because they stop their ranks; the database last, so that all others can still write."""
        self._report("stopping")
        await _stop(self._nodes)
        for node in self._nodes:
            await asyncio.to_thread(clear_node, self._layout, node)
        await _stop(self._services)
        for server in ("nats", "postgres"):
            await _stop({name: child for name, child in self._servers.items() if name == server})
        self._report("stopped; the data is kept, and `holdfast up` resumes from here")

    async def _answer(self, request: AnyRequest) -> Reply:
        match request:
            case Status():
                return Reply(ready=self._ready, children=self._statuses())
            case Stop(force=force):
                self.interrupt()
                if force:
                    self.interrupt()
                return Reply()
            case PowerOff(node=node):
                return await self._power_off(node)
            case PowerOn(node=node):
                child = self._known(node)
                if child.record is not None:
                    raise ControlRefused(f"{node} is already on")
                child.switch_on()
                await child.until_ready()
                return Reply(node=node)
            case AddNode():
                self._require_running()
                node = _next_node(self._info.nodes)
                self._info = msgspec.structs.replace(self._info, nodes=[*self._info.nodes, node])
                self._record()
                await self._admit(node)
                await self._bring_up(self._nodes, [self._agent(node)])
                return Reply(node=node)

    async def _power_off(self, node: str) -> Reply:
        child = self._known(node)
        agent = None if child.record is None else child.record.pid
        child.abandon()
        killed = await asyncio.to_thread(clear_node, self._layout, node, agent)
        await child.until_ended()
        self._report(f"{node} is powered off: {killed} processes killed")
        return Reply(node=node, killed=killed)

    def _require_running(self) -> None:
        if not self._ready or self._stop_asked.is_set():
            raise ControlRefused("the cluster is still starting, or is stopping")

    def _known(self, node: str) -> Child:
        self._require_running()
        if node not in self._nodes:
            raise ControlRefused(f"there is no node {node!r}; the nodes are {', '.join(self._nodes)}")
        return self._nodes[node]

    def _statuses(self) -> list[ChildStatus]:
        kinds = (("server", self._servers), ("service", self._services), ("node", self._nodes))
        return [
            ChildStatus(
                name=child.name,
                kind=kind,
                state=child.state,
                pid=None if child.record is None else child.record.pid,
                restarts=child.restarts,
                ready_s=child.ready_s,
                last_exit=child.last_exit,
            )
            for kind, children in kinds
            for child in children.values()
        ]

    def _describe(self, ports: Ports, nodes: list[str], before: Fabric | None) -> ClusterInfo:
        network = fabric.choose(self._layout, before) if self._options.namespaces else None
        return ClusterInfo(
            version=importlib.metadata.version("holdfast"),
            pid=os.getpid(),
            ports=ports,
            nats_url=passwords.nats_url(self._passwords, ports, self._nats_host(network)),
            nats_monitor_url=f"http://{passwords.HOST}:{ports.nats_monitor}",
            database_urls=passwords.database_urls(self._passwords, ports),
            nodes=nodes,
            settings=self._plan.settings,
            allows_faults=self._options.allow_faults,
            fabric=network,
        )

    @staticmethod
    def _nats_host(network: Fabric | None) -> str:
        return passwords.HOST if network is None else network.gateway

    def _choose_nodes(self, before: ClusterInfo | None) -> list[str]:
        known = [] if before is None else before.nodes
        count = self._options.nodes
        if count is None:
            count = DEFAULT_NODES if before is None else len(known)
        if count < len(known):
            raise EmbeddedError(
                f"this cluster has {len(known)} nodes, with files of jobs on them. Start it without --nodes, "
                f"or with --nodes {len(known)} or more, or start a smaller one in another --dir."
            )
        nodes = list(known)
        while len(nodes) < count:
            nodes.append(_next_node(nodes))
        return nodes

    def _changed(self, child: Child, line: str | None) -> None:
        if line is not None:
            self._report(line)
        self._record()

    def _record(self) -> None:
        records = {child.name: child.record for child in self._all() if child.record is not None}
        self._info = msgspec.structs.replace(self._info, children=records)
        self._layout.write_info(self._info)

    def _all(self) -> list[Child]:
        return [*self._nodes.values(), *self._services.values(), *self._servers.values()]

    def _report(self, line: str, *, tell: bool = True) -> None:
        if self._log is not None:
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            self._log.write(f"{at} {line}\n".encode())
        if tell:
            self._tell(line)


def _next_node(nodes: list[str]) -> str:
    return f"node-{1 + max((int(node.removeprefix('node-')) for node in nodes), default=-1)}"


async def _stop(children: dict[str, Child]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for child in children.values():
            tasks.create_task(child.stop(), name=f"stop {child.name}")
