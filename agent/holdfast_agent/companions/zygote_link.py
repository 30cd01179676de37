"""The agent's connection to its zygote, which is found alive after a restart or started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from holdfast.node import process_mark
from holdfast.node.frames import WireError
from holdfast.node.link import Link
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.companions import companion
from holdfast_agent.companions.nursery_link import FIRST_WITHIN_S, Newborn, born
from holdfast_agent.zygote import plan_file
from holdfast_agent.zygote.wire import MESSAGE_BYTES_MAX, Attach, Command, Report, StartRanks, Welcome, reports

RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
REPLACED_WITHIN = 1 / 3
"""Part of `timeouts.start_s` for which the agent waits for the nursery once the node may have orders. An import by the
agent itself must fit into the rest."""
_SOCKET = "zygote.sock"
LOG_FILE = "zygote.log"

log = structlog.get_logger(__name__)


class ZygoteLink:
    """Keeps a zygote attached. Both callbacks run on the loop and must not wait."""

    def __init__(
        self,
        directory: Path,
        address: str,
        timeouts: Timeouts,
        on_report: Callable[[Report], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._address = address
        self._timeouts = timeouts
        self._on_report = on_report
        self._on_lost = on_lost
        self._connection: _Connection | None = None
        self._process: subprocess.Popen[bytes] | Newborn | None = None
        self._births_fail = False
        self._has_served = False
        self.ended = asyncio.Event()
        self._ending = False

    async def run(self) -> None:
        """Attach, and attach again after every loss, until `end`."""
        pause_s = RETRY_MIN_S
        while not self._ending:
            connection = await self._connect()
            if connection is None:
                self._births_fail = True
                log.error("the zygote does not come up", log=str(self._directory / LOG_FILE), again_in_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            is_newborn = isinstance(self._process, Newborn)
            reports = await self._serve(connection)
            self._has_served |= reports > 0
            # A zygote from the nursery that cannot serve is replaced by one that is not. That a dying one still takes a
            # connection, before its listening socket is closed too, shows nothing of the nursery.
            self._births_fail = not reports and (is_newborn or self._births_fail)
            # A zygote that exits before its first report is restarted after a pause, one that worked at once.
            if not reports and not self._ending:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                pause_s = RETRY_MIN_S
        self.ended.set()

    def send(self, *commands: Command | StartRanks) -> None:
        """Send commands, in order. Without a connection they are dropped: the next `Welcome` shows the whole state."""
        if self._connection is not None:
            self._connection.send(*commands)

    def end(self, command: Command) -> None:
        """Send the last command; `ended` is set once the zygote has exited."""
        self._ending = True
        if self._connection is None:
            self.ended.set()
        self.send(command)

    async def _connect(self) -> socket.socket | None:
        connection = self._try_socket()
        if connection is None:
            await self._spawn()
            connection = self._try_socket()
        return connection

    def _try_socket(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The path may exceed the 107 bytes of a socket address.
        folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{_SOCKET}")
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        finally:
            os.close(folder)
        return connection

    async def _end_leftovers(self) -> None:
        """Kill what a zygote that is gone has left behind; a new generation must not run beside it."""
        try:
            count = await asyncio.to_thread(process_mark.end_marked, process_mark.mark_of(self._directory))
        except TimeoutError as error:
            log.error("processes of an earlier zygote remain", reason=str(error))
            return
        if count:
            log.warning("killed what an earlier zygote left behind", processes=count)

    async def _spawn(self) -> None:
        await self._end_leftovers()
        log_file = self._directory / LOG_FILE
        within_s = REPLACED_WITHIN * self._timeouts.start_s if self._has_served else FIRST_WITHIN_S
        newborn = None if self._births_fail else await born(self._directory, self._address, log_file, within_s)
        if newborn is None:
            flags = ("--state-dir", str(self._directory), "--address", self._address)
            self._process = await companion.start("holdfast_agent.zygote", log_file, *flags)
        else:
            self._process = newborn

    async def _serve(self, connection: socket.socket) -> int:
        """Attach and pass on reports until the connection ends; return the number of reports."""
        peer = _peer_pid(connection)
        attached = self._connection = _Connection(connection, self._on_report)
        self.send(Attach(orphan_s=self._timeouts.orphan_s))
        try:
            await attached.ended
        except WireError as error:
            log.error("the zygote speaks another protocol and is replaced", reason=str(error), pid=peer)
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer, signal.SIGTERM)
        finally:
            self._connection = None
            attached.close()
        if self._process is not None and self._process.pid == peer:
            if isinstance(self._process, Newborn):
                await self._process.ended()
            else:
                log.info("the zygote ended", code=await companion.ended(self._process))
            self._process = None
        self._on_lost()
        return attached.reports


class _Connection:
    """A connection to a zygote, on the agent's loop. `ended` is set when it ends, with the error if there is one."""

    def __init__(self, connection: socket.socket, on_report: Callable[[Report], None]) -> None:
        self._link = Link(connection, reports, MESSAGE_BYTES_MAX)
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.reports = 0
        self._loop.add_reader(connection, self._receive)

    def send(self, *commands: Command | StartRanks) -> None:
        for command in commands:
            if isinstance(command, StartRanks):
                self._link.put(*plan_file.write(command))
            else:
                self._link.put(command)
        self._flush()

    def _flush(self) -> None:
        # What fails here ends the connection where it is read, after the last reports.
        with contextlib.suppress(OSError):
            self._link.flush()
            if self._link.outgoing_bytes:
                self._loop.add_writer(self._link.connection, self._flush)
                return
        self._loop.remove_writer(self._link.connection)

    def _receive(self) -> None:
        try:
            for report in self._link.receive():
                self.reports += 1
                self._on_report(self._complete(report))
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._end(None)
        except Exception as error:  # noqa: BLE001 - the loop would only log it; who awaits `ended` raises it
            self._end(error)

    def _complete(self, report: Report) -> Report:
        """Return the report with the order that its file has."""
        if not isinstance(report, Welcome) or report.order_in_file is None:
            return report
        descriptor = self._link.descriptor()
        try:
            return msgspec.structs.replace(report, order=plan_file.read(descriptor, report.order_in_file))
        finally:
            os.close(descriptor)

    def _end(self, error: Exception | None) -> None:
        self._loop.remove_reader(self._link.connection)
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def close(self) -> None:
        self._loop.remove_reader(self._link.connection)
        self._loop.remove_writer(self._link.connection)
        self._link.close()


def _peer_pid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])
