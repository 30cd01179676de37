"""The supervisor of an embedded cluster: starts everything in order, keeps it running, stops it in order."""

import asyncio
import contextlib
import datetime
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.daemon.gate import Gate
from holdfast.embedded import control, fabric
from holdfast.embedded.database import Database
from holdfast.embedded.errors import ClusterAlreadyRunning, ControlRefused, EmbeddedError
from holdfast.embedded.layout import (
    NOT_STARTED,
    ClusterInfo,
    ClusterLayout,
    Fabric,
    InfoFile,
    Ports,
    choose_nodes,
    next_node,
)
from holdfast.embedded.options import ClusterOptions
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.processes.fork_server_link import ForkServerLink
from holdfast.embedded.processes.leftovers import clear_node, end_leftovers, free_ledgers
from holdfast.embedded.processes.logfile import RotatingLog
from holdfast.embedded.servers import credentials as passwords
from holdfast.embedded.servers.access import Access
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.nats_disk import restart_after_write_errors
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres_recovery import restart_after_failed_recovery
from holdfast.embedded.services import ClusterPlan


class Supervisor:
    """One run of one cluster. `show_line` receives a line of text for every event."""

    def __init__(
        self,
        layout: ClusterLayout,
        plan: ClusterPlan,
        options: ClusterOptions,
        show_line: Callable[[str], None],
        fork_server: ForkServerLink | None,
    ) -> None:
        self._layout = layout
        self._file = InfoFile(layout, self._report)
        self._plan = plan
        self._options = options
        self._show_line = show_line
        self._fork_server = fork_server
        self._servers: dict[str, Child] = {}
        self._services: dict[str, Child] = {}
        self._nodes: dict[str, Child] = {}
        self._runs: list[asyncio.Task[None]] = []
        self._log: RotatingLog | None = None
        self._stop_asked = asyncio.Event()
        self._failure: EmbeddedError | None = None
        self._ready = False

    async def run(self, on_ready: Callable[[ClusterInfo], None]) -> None:
        """Run the cluster until `interrupt` or a Stop request. `on_ready` is called once all of it is up; in one for a
        single run once it takes the job, which then waits for the nodes. Raises ClusterAlreadyRunning if the directory
        is in use, StartFailed or another EmbeddedError if the cluster cannot be started. However it ends, no process is
        left and the data can be used again.
        """
        layout = self._layout
        layout.create(self._plan.passage_gid)
        with self._lock():
            before = layout.remembered()
            nodes = choose_nodes(before, self._options.nodes)
            self._log = RotatingLog(layout.log("supervisor"))
            if before is not None:
                for name in await asyncio.to_thread(end_leftovers, before):
                    self._report(f"{name} was left by a supervisor that died; stopped it")
                if before.fabric is not None:
                    await asyncio.to_thread(fabric.remove, before.fabric)
            given = {"postgres": self._options.postgres_port, "nats": self._options.nats_port}
            with reserve_ports(given, None if before is None else before.ports) as ports:
                renew = self._options.new_passwords and before is not None
                network = None if before is None else before.fabric
                network = fabric.choose(layout, network) if self._options.namespaces else None
                host = HOST if network is None else network.gateway
                self._access = Access(layout, nodes, ports, host, renew=renew)
                self._info = self._describe(ports, nodes, network)
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
                    self._file.write(self._info)
                if self._failure is not None:
                    self._report(f"{NOT_STARTED}{self._failure}", show_line=False)
                    raise self._failure

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            with self._layout.lock():
                yield
        except ClusterAlreadyRunning as error:
            if self._options.new_passwords:
                raise ClusterAlreadyRunning(
                    f"{error} Its passwords are replaced while it runs by `holdfast credentials renew --all`."
                ) from None
            raise

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
            async with control.ControlServer(self._layout, self._tasks, self._answer):
                starting = self._tasks.create_task(self._start(on_ready), name="start")
                await self._stop_asked.wait()
                starting.cancel()
                await asyncio.wait([starting])
                await self._end_all()
            for run in self._runs:
                run.cancel()

    async def _start(self, on_ready: Callable[[ClusterInfo], None]) -> None:
        try:
            # All load their modules at once, which takes longest; then services need the servers, and agents both.
            service_gate, agent_gate = Gate(self._layout.service_gate), Gate(self._layout.agent_gate)
            early = self._launch(self._services, self._plan.early(self._layout, self._info))
            specs = self._plan.services(self._layout, self._info)
            services = self._launch(self._services, [spec for spec in specs if spec.name not in self._plan.late])
            agents = self._launch(self._nodes, map(self._agent, self._info.nodes))
            await self._start_servers()
            service_gate.open()
            for child in (*services, *early):
                await child.until_ready()
            retiring = self._access.keep_retiring(lambda: self._info.nodes, self._services.keys())
            self._runs.append(self._tasks.create_task(retiring, name="retired keys"))
            applying = self._access.keep_applying(lambda: self._info.nodes, self._servers["nats"])
            self._runs.append(self._tasks.create_task(applying, name="failed changes"))
            agent_gate.open()
            if self._options.for_one_run:
                # Its job waits for the nodes, and brings its code here meanwhile.
                on_ready(self._info)
            for child in agents:
                await child.until_ready()
        except EmbeddedError as failure:
            self._failure = failure
            self._stop_asked.set()
        else:
            self._ready = True
            if not self._options.for_one_run:
                on_ready(self._info)
            self._launch(self._services, [spec for spec in specs if spec.name in self._plan.late])

    async def _start_servers(self) -> None:
        nats = self._launch(self._servers, [self._access.nats(self._info.nodes)])
        self._database = Database(
            self._layout,
            self._access,
            self._info.ports,
            self._plan.migrate,
            self._plan.database_made_by,
            durable=not self._options.for_one_run,
        )
        await self._database.start(self._bring_up_server)
        self._report("database up to date")
        for child in nats:
            await child.until_ready()
        watch = restart_after_write_errors(
            self._servers["nats"], self._info.nats_monitor_url, self._layout.nats, self._report
        )
        self._runs.append(self._tasks.create_task(watch, name="disk of nats"))
        recovery = restart_after_failed_recovery(
            self._servers["postgres"], lambda: self._access.database_urls["admin"], self._report
        )
        self._runs.append(self._tasks.create_task(recovery, name="recovery of postgres"))
        self._runs.append(self._tasks.create_task(self._access.record(), name="record of credentials"))

    def _agent(self, node: str) -> ChildSpec:
        self._layout.node(node).mkdir(mode=0o700, exist_ok=True)
        if self._info.fabric is not None:
            fabric.add_node(self._info.fabric, node)
        return self._plan.agent(self._layout, self._info, node)

    async def _bring_up(self, kind: dict[str, Child], specs: Iterable[ChildSpec]) -> None:
        """Start children concurrently and wait until all are ready; revoked nodes stay off. Raises StartFailed."""
        for child in self._launch(kind, specs):
            await child.until_ready()

    async def _bring_up_server(self, spec: ChildSpec) -> Child:
        await self._bring_up(self._servers, [spec])
        return self._servers[spec.name]

    def _launch(self, kind: dict[str, Child], specs: Iterable[ChildSpec]) -> list[Child]:
        """Start children. Return those that are not switched off."""
        launched = [Child(spec, self._layout.log(spec.name), self._changed, self._fork_server) for spec in specs]
        wanted = [child for child in launched if child.name not in self._access.credentials.revoked]
        for child in launched:
            kind[child.name] = child
            self._runs.append(self._tasks.create_task(child.run(), name=f"child {child.name}"))
        for child in wanted:
            child.switch_on()
        return wanted

    async def _end_all(self) -> None:
        """Stop agents first, because they stop their ranks; the database last, so that all others can still write."""
        self._report("stopping")
        await _stop(self._nodes)
        for node in self._nodes:
            await asyncio.to_thread(clear_node, self._layout, node)
        if self._options.for_one_run:
            for child in (*self._services.values(), *self._servers.values()):
                child.kill()
        await _stop(self._services)
        for server in ("nats", "postgres"):
            await _stop({name: child for name, child in self._servers.items() if name == server})
        kept = "" if self._options.for_one_run else "; the data is kept, and `holdfast up` resumes from here"
        self._report(f"stopped{kept}")

    async def _answer(self, request: control.AnyRequest) -> control.Reply:
        match request:
            case control.Status():
                return control.Reply(ready=self._ready, children=self._statuses())
            case control.Stop(force=force):
                self.interrupt()
                if force:
                    self.interrupt()
                return control.Reply()
            case control.PowerOff(node=node):
                return await self._power_off(node)
            case control.PowerOn(node=node):
                return await self._power_on(node)
            case control.AddNode():
                return await self._add_node()
            case control.Users():
                self._require_running()
                return control.Reply(users=await self._access.statuses(passwords.names(self._info.nodes)))
            case control.Renew(users=names, by=by):
                return await self._renew(names, by)
            case control.Revoke(node=node, by=by):
                return await self._revoke(node, by)
            case control.Restore(node=node, by=by):
                return await self._restore(node, by)

    async def _add_node(self) -> control.Reply:
        self._require_running()
        async with self._access.changing:
            node = next_node(self._info.nodes)
            self._info = msgspec.structs.replace(self._info, nodes=[*self._info.nodes, node])
            self._record()
            self._access.add(self._info.nodes)
            await self._access.apply(self._info.nodes, [node], self._servers["nats"], is_new=True)
        await self._bring_up(self._nodes, [self._agent(node)])
        return control.Reply(node=node)

    async def _renew(self, names: list[str], by: str) -> control.Reply:
        self._require_running()
        names = self._access.known(names, self._info.nodes)
        async with self._access.changing:
            await self._access.settle_admin()
            self._access.renew(names, by)
            self._servers["postgres"].spec = self._database.spec()
            # Commands find their addresses there.
            self._info = self._describe(self._info.ports, self._info.nodes, self._info.fabric)
            self._record()
            await self._access.apply(self._info.nodes, names, self._servers["nats"])
            running = [it.name for it in (*self._services.values(), *self._nodes.values()) if it.ready_s is not None]
            late = await self._access.retire_keys(self._info.nodes, running)
        self._report(f"new secrets: {', '.join(names)}")
        late += await self._access.until_connected([it for it in names if it in running and it not in late])
        return control.Reply(users=await self._access.statuses(names), late=late)

    async def _revoke(self, node: str, by: str) -> control.Reply:
        self._known(node)
        async with self._access.changing:
            self._access.revoke(node, by)
            self._report(f"{node} is revoked")
            try:
                await self._access.apply(self._info.nodes, [node], self._servers["nats"])
            finally:
                reply = await self._power_off(node)
        return reply

    async def _restore(self, node: str, by: str) -> control.Reply:
        self._known(node)
        async with self._access.changing:
            self._access.restore(node, by)
            await self._access.apply(self._info.nodes, [node], self._servers["nats"], is_new=True)
        self._report(f"{node} is restored")
        return await self._power_on(node)

    async def _power_on(self, node: str) -> control.Reply:
        child = self._known(node)
        if node in self._access.credentials.revoked:
            raise ControlRefused(f"{node} is revoked: `holdfast credentials restore {node}` lets it in again")
        if child.record is not None:
            raise ControlRefused(f"{node} is already on")
        child.switch_on()
        await child.until_ready()
        return control.Reply(node=node)

    async def _power_off(self, node: str) -> control.Reply:
        child = self._known(node)
        agent = None if child.record is None else child.record.pid
        child.abandon()
        killed = await asyncio.to_thread(clear_node, self._layout, node, agent)
        await child.until_ended()
        self._report(f"{node} is powered off: {killed} processes killed")
        return control.Reply(node=node, killed=killed)

    def _require_running(self) -> None:
        if not self._ready or self._stop_asked.is_set():
            raise ControlRefused("the cluster is still starting, or is stopping")

    def _known(self, node: str) -> Child:
        self._require_running()
        if node not in self._nodes:
            raise ControlRefused(f"there is no node {node!r}; the nodes are {', '.join(self._nodes)}")
        return self._nodes[node]

    def _statuses(self) -> list[control.ChildStatus]:
        kinds = (("server", self._servers), ("service", self._services), ("node", self._nodes))
        return [
            control.ChildStatus(
                name=child.name,
                kind=kind,
                state="revoked" if child.name in self._access.credentials.revoked else child.state,
                pid=None if child.record is None else child.record.pid,
                restarts=child.restarts,
                ready_s=child.ready_s,
                last_exit=child.last_exit,
            )
            for kind, children in kinds
            for child in children.values()
        ]

    def _describe(self, ports: Ports, nodes: list[str], network: Fabric | None) -> ClusterInfo:
        return ClusterInfo(
            version=importlib.metadata.version("holdfast"),
            pid=os.getpid(),
            ports=ports,
            nats_url=self._access.nats_url,
            nats_monitor_url=self._access.nats_monitor_url,
            database_urls=self._access.database_urls,
            nodes=nodes,
            settings=self._plan.settings,
            allows_faults=self._options.allow_faults,
            fabric=network,
        )

    def _changed(self, child: Child, line: str | None) -> None:
        if line is not None:
            self._report(line)
        self._record()

    def _record(self) -> None:
        records = {child.name: child.record for child in self._all() if child.record is not None}
        self._info = msgspec.structs.replace(self._info, children=records)
        self._file.write(self._info)

    def _all(self) -> list[Child]:
        return [*self._nodes.values(), *self._services.values(), *self._servers.values()]

    def _report(self, line: str, *, show_line: bool = True) -> None:
        if self._log is not None:
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            self._log.write(f"{at} {line}\n".encode())
        if show_line:
            self._show_line(line)


async def _stop(children: dict[str, Child]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for child in children.values():
            tasks.create_task(child.stop(), name=f"stop {child.name}")
