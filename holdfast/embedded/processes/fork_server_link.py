"""The supervisor's end of its fork server: children that are forked instead of executed, where that is possible."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from typing import NoReturn

import msgspec

from holdfast.embedded.processes.child_process import Process
from holdfast.embedded.processes.fork_server import CannotFork, ForkReply, ForkRequest, serve
from holdfast.node.forks import fork_child
from holdfast.node.kernel import become_subreaper, cease_as_subreaper, thread_count

REPLY_WITHIN_S = 30.0
"""Time for the first fork of a kind, with its imports."""
LATER_REPLY_WITHIN_S = 5.0
"""Time for each later one: a fork takes milliseconds, and its service is away until then."""
_REPLY_BYTES_MAX = 1 << 16


class Forked:
    """A child that the fork server forked and that belongs to this process."""

    def __init__(self, pid: int) -> None:
        # Raises ChildProcessError if it is not.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.pid = pid

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class ForkServerLink:
    """A fork server of this process."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._lost: str | None = None
        self._imported = set[str]()
        self._turn = asyncio.Lock()

    async def fork(self, request: ForkRequest, output: int) -> Process:
        """Fork the child; it announces that it is ready. Raises CannotFork with the reason: it has to be executed."""
        reading, ready = os.pipe()
        begin, tell = os.pipe()
        try:
            async with self._turn:
                reply = await self._ask(request, [output, begin, ready])
            if reply.reason:
                raise CannotFork(reply.reason)
            process = Process(Forked(reply.pid), reading)
            with contextlib.suppress(BrokenPipeError):  # Killed already: its exit is noticed.
                os.write(tell, b"1")
            return process
        except OSError as error:
            os.close(reading)
            raise CannotFork(str(error)) from error
        except BaseException:
            os.close(reading)
            raise
        finally:
            for end in (ready, begin, tell):
                os.close(end)

    async def _ask(self, request: ForkRequest, descriptors: list[int]) -> ForkReply:
        if self._lost is not None:
            raise CannotFork(self._lost)
        if "" in request.environment:
            raise CannotFork("one of its variables has no name")
        try:
            message = msgspec.msgpack.encode(request)
        except UnicodeEncodeError as error:
            raise CannotFork("its variables and paths are not all UTF-8") from error
        loop = asyncio.get_running_loop()
        # Only until the child's first parent has ended: other orphans must not become children of this process.
        become_subreaper()
        try:
            socket.send_fds(self._link, [message], descriptors)
            async with asyncio.timeout(LATER_REPLY_WITHIN_S if request.imports in self._imported else REPLY_WITHIN_S):
                reply = await loop.sock_recv(self._link, _REPLY_BYTES_MAX)
            self._imported.add(request.imports)
            return msgspec.msgpack.decode(reply, type=ForkReply)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            if isinstance(error, OSError) and error.errno == errno.EMSGSIZE:
                raise CannotFork("its variables are longer than a message may be") from error
            raise self._lose("the fork server has ended, or does not answer") from error
        except asyncio.CancelledError:
            self._lose("a fork was given up")  # Its reply would be taken for the next one's.
            raise
        finally:
            cease_as_subreaper()

    def _lose(self, reason: str) -> CannotFork:
        self._lost = reason
        self._link.close()
        return CannotFork(reason)


def start_fork_server() -> ForkServerLink | None:
    """Fork a fork server from this process; None: it has threads, which a fork would lack."""
    # Whatever started this process may have ignored it: the kernel would then keep no exit code of a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if thread_count() != 1:
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def child(_: int) -> NoReturn:
        ours.close()
        serve(theirs)

    fork_child(child)
    theirs.close()
    return ForkServerLink(ours)
