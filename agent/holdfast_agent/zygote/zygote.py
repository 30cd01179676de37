"""The zygote: the node's warm process from which ranks are forked.

It has one thread and outlives the agent. By itself it only forwards the ranks' output, and ends everything when no
agent attaches in time. Its children die with it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from holdfast.node.forks import fork_child
from holdfast.node.frames import WireError
from holdfast.node.link import Link
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.zygote.hosts.warm_up_host import WarmUpHost
from holdfast_agent.zygote.rank_logs import Output
from holdfast_agent.zygote.wire import (
    MESSAGE_BYTES_MAX,
    AckExit,
    Attach,
    Command,
    End,
    Fence,
    FollowLines,
    Lines,
    MakeContext,
    Report,
    StartPlanned,
    StartStore,
    StartWarmUp,
    StopRanks,
    StopStore,
    StoreFailed,
    Welcome,
    commands,
)

SOCKET = "zygote.sock"
PID_FILE = "zygote.pid"
LOCK_FILE = "zygote.lock"
PORTS_FILE = "store-ports.json"
BACKLOG_BYTES_MAX = 1024 * 1024
"""Size limit for output lines to a slow agent, beyond which lines are dropped; other reports are always kept."""

log = structlog.get_logger("zygote")


class _AgentLink:
    """The connection of the attached agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.link = Link(connection, commands, MESSAGE_BYTES_MAX)
        self.attached = False
        self.dropped_lines = 0

    def send(self, report: Report, descriptor: int | None = None) -> None:
        if isinstance(report, Lines):
            if self.link.outgoing_bytes > BACKLOG_BYTES_MAX:
                self.dropped_lines += len(report.lines)
                return
            if self.dropped_lines:
                report = msgspec.structs.replace(report, dropped=self.dropped_lines)
                self.dropped_lines = 0
        self.link.put(report, descriptor)


class _Store(NamedTuple):
    pid: int
    port: int
    fence: Fence


class Zygote:
    """The zygote of one node, with its sockets open and torch loaded."""

    def __init__(self, directory: Path, listener: socket.socket, stores: list[socket.socket], preload_s: float) -> None:
        # Imported late because it imports torch.
        from holdfast_agent.zygote.crew import Crew

        self._directory = directory
        self._listener = listener
        self._listeners = {int(store.getsockname()[1]): store for store in stores}
        self._preload_s = preload_s
        self._selector = selectors.DefaultSelector()
        self._crew = Crew(
            self._selector,
            self._send,
            self._bystanders,
            self._bystander_ended,
            has_agent=lambda: self._agent is not None and self._agent.attached,
        )
        self._warm_up = WarmUpHost(self._selector, self._send, sys.stderr.fileno())
        self._agent: _AgentLink | None = None
        self._stores: dict[int, _Store] = {}
        self._orphan_s = Timeouts().orphan_s
        self._alone_since: float | None = time.monotonic()
        self._dying_stores: set[int] = set()
        self._end_asked = False
        self._ending = False
        self._wakeup, self._wakeup_in = os.pipe()

    def run(self) -> None:
        for descriptor in (self._wakeup, self._wakeup_in):
            os.set_blocking(descriptor, False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_in, warn_on_full_buffer=False)
        self._listener.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, "wakeup")
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._crew.reap()
        while not (self._ending and not self._crew.stopping):
            ready = self._selector.select(self._wait_s())
            # Exits come before the output that may be pending.
            if any(key.data == "wakeup" for key, _ in ready):
                self._drain_wakeup()
                self._crew.reap()
            for key, events in ready:
                self._handle(key, events)
            self._keep_time()
            self._flush()

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self._end_asked = True

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakeup, 4096):
                continue

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if isinstance(key.data, Output):
            # An earlier event of this turn may have closed it.
            if key.fd in self._selector.get_map():
                self._crew.pump(key.data)
        elif self._crew.spares.pump(key.data):
            return
        elif key.data is self._warm_up:
            if key.fd in self._selector.get_map():
                self._warm_up.pump()
        elif key.data == "listener":
            self._accept()
        elif isinstance(key.data, _AgentLink) and key.data is self._agent and events & selectors.EVENT_READ:
            self._receive(key.data)

    def _wait_s(self) -> float | None:
        deadlines = [self._crew.deadline, self._warm_up.deadline]
        if self._alone_since is not None and not self._ending:
            deadlines.append(self._alone_since + self._orphan_s)
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _keep_time(self) -> None:
        now = time.monotonic()
        self._crew.keep_time(now)
        self._warm_up.keep_time(now)
        if self._end_asked:
            self._end("asked by SIGTERM")
        if self._alone_since is not None and now >= self._alone_since + self._orphan_s:
            self._end(f"no agent for {self._orphan_s:g} s")

    def _end(self, reason: str) -> None:
        if self._ending:
            return
        self._ending = True
        log.info("ending", reason=reason)
        self._crew.stop(StopRanks(number=0, grace_s=0.0))

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        if self._agent is not None:
            log.info("another agent takes over")
            self._lose_agent(self._agent)
        self._agent = _AgentLink(connection)
        self._selector.register(connection, selectors.EVENT_READ, self._agent)

    def _receive(self, agent: _AgentLink) -> None:
        try:
            for command in agent.link.receive():
                self._obey(agent, command)
        except BlockingIOError:
            return
        except EOFError:
            self._lose_agent(agent)
        except (WireError, OSError) as error:
            log.error("the agent is cut off", reason=str(error))
            self._lose_agent(agent)

    def _lose_agent(self, agent: _AgentLink) -> None:
        if self._agent is not agent:
            return
        self._selector.unregister(agent.link.connection)
        agent.link.close()
        self._agent = None
        self._crew.follow(())
        self._alone_since = time.monotonic()

    def _send(self, report: Report) -> None:
        if self._agent is not None and self._agent.attached:
            self._agent.send(report)

    def _flush(self) -> None:
        agent = self._agent
        if agent is None:
            return
        try:
            agent.link.flush()
        except OSError as error:
            log.info("the agent is gone", reason=error.strerror)
            self._lose_agent(agent)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if agent.link.outgoing_bytes else 0)
        if self._selector.get_key(agent.link.connection).events != wanted:
            self._selector.modify(agent.link.connection, wanted, agent)

    def _obey(self, agent: _AgentLink, command: Command) -> None:
        match command:
            case Attach():
                self._welcome(agent, command)
            case StartPlanned():
                self._crew.start(command, agent.link.descriptor())
            case StopRanks():
                self._warm_up.end()
                self._crew.stop(command)
            case StartStore():
                self._start_store(command)
            case StartWarmUp():
                self._warm_up.start(command)
            case StopStore():
                self._stop_stores(command.keep)
                if command.keep is None:
                    self._crew.spares.end_all("the node has no job")
            case MakeContext():
                self._crew.make_context(command)
            case AckExit():
                self._crew.exits.pop(command.exit_id, None)
            case FollowLines():
                self._crew.follow(command.ranks)
            case End():
                self._end("asked by the agent")
        # Answers do not wait for the end of the turn.
        agent.link.flush()

    def _welcome(self, agent: _AgentLink, command: Attach) -> None:
        self._orphan_s = command.orphan_s
        self._alone_since = None
        agent.attached = True
        order, plans = self._crew.order()
        agent.send(
            Welcome(
                pid=os.getpid(),
                store_ports=tuple(self._listeners),
                python=platform.python_version(),
                torch=str(sys.modules["torch"].__version__),
                preload_s=self._preload_s,
                ranks=self._crew.live,
                exits=tuple(self._crew.exits.values()),
                order_in_file=order,
            ),
            plans,
        )

    def _start_store(self, command: StartStore) -> None:
        from holdfast_agent.zygote.hosts.store_host import serve_store

        listener = self._listeners.get(command.port)
        if listener is None:
            ports = ", ".join(map(str, self._listeners))
            self._send(StoreFailed(fence=command.fence, reason=f"port {command.port} is none of this node's: {ports}"))
            return
        for store in [store for store in self._stores.values() if store.port == command.port]:
            self._end_store(store)
        pid = fork_child(lambda parent: serve_store(parent, listener, sys.stderr.fileno()))
        self._stores[pid] = _Store(pid, command.port, command.fence)

    def _stop_stores(self, keep: Fence | None) -> None:
        for store in [store for store in self._stores.values() if store.fence != keep]:
            self._end_store(store)

    def _end_store(self, store: _Store) -> None:
        # Not awaited: freeing its memory takes the kernel milliseconds that a recovery cannot spare.
        os.kill(store.pid, signal.SIGKILL)
        del self._stores[store.pid]
        self._dying_stores.add(store.pid)

    def _bystanders(self) -> set[int]:
        return self._dying_stores | self._stores.keys() | self._warm_up.pids

    def _bystander_ended(self, pid: int, code: int) -> None:
        self._dying_stores.discard(pid)
        self._warm_up.pids.discard(pid)
        store = self._stores.pop(pid, None)
        if store is not None:
            log.error("the store ended", code=code, fence=store.fence)
            self._send(StoreFailed(fence=store.fence, reason=f"the store process exited with code {code}"))
