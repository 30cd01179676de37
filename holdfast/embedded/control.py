"""The control socket of a running supervisor: one JSON request per line, one JSON reply."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.embedded.errors import ControlRefused, EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterLayout

_LINE_BYTES_MAX = 64 * 1024
_REQUEST_WITHIN_S = 5.0
_REPLY_WITHIN_S = 60.0


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """A request to a supervisor."""


class Status(Request, frozen=True, kw_only=True, tag="status"):
    """Report every child's `ChildStatus`."""


class Stop(Request, frozen=True, kw_only=True, tag="stop"):
    """Stop the cluster in order, or immediately with `force`. The reply is sent before the cluster has stopped."""

    force: bool = False


class PowerOff(Request, frozen=True, kw_only=True, tag="poweroff"):
    """Power a node off: SIGKILL to its agent and all its processes; it stays off."""

    node: str


class PowerOn(Request, frozen=True, kw_only=True, tag="poweron"):
    """Start the agent of a node that is off; the reply comes when it is ready."""

    node: str


class AddNode(Request, frozen=True, kw_only=True, tag="add_node"):
    """Add one more node; the reply names it once it is ready."""


class Users(Request, frozen=True, kw_only=True, tag="users"):
    """Report the `UserStatus` of every service, node, operator and reader."""


class Renew(Request, frozen=True, kw_only=True, tag="renew"):
    """Give users new passwords, and services new keys (`keys`); everything if none is named. The reply comes when
    services and agents use them.
    """

    users: list[str]
    by: str = ""
    """The user who asks, for the record."""


class Revoke(Request, frozen=True, kw_only=True, tag="revoke"):
    """Let a node in no more, and power it off."""

    node: str
    by: str = ""


class Restore(Request, frozen=True, kw_only=True, tag="restore"):
    """Let a revoked node in again; the reply comes when its agent is ready."""

    node: str
    by: str = ""


AnyRequest = Status | Stop | PowerOff | PowerOn | AddNode | Users | Renew | Revoke | Restore


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one child. `ready_s`: seconds since it became ready, None while it is not."""

    name: str
    kind: str
    state: str
    pid: int | None
    restarts: int
    ready_s: float | None
    last_exit: str | None


class UserStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A user of bus and database, named as its process. `since`: when it got its password, None if that is not known;
    `connections`: those to the bus.
    """

    name: str
    kind: str
    since: datetime | None
    revoked: datetime | None
    connections: int


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply. `error` is None on success; other fields depend on the request."""

    error: str | None = None
    ready: bool = False
    children: list[ChildStatus] = []
    node: str | None = None
    killed: int | None = None
    users: list[UserStatus] = []
    late: list[str] = []
    """Services and nodes that run and do not use their new password or key yet."""


Answer = Callable[[AnyRequest], Awaitable[Reply]]


class ControlServer:
    """A server on the control socket while it is entered. Requests run as tasks of the caller's group."""

    def __init__(self, layout: ClusterLayout, tasks: asyncio.TaskGroup, answer: Answer) -> None:
        self._layout = layout
        self._tasks = tasks
        self._answer = answer
        self._requests: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> None:
        path = self._layout.control_socket
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(path) as address:
            listening.bind(address)
        path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=_LINE_BYTES_MAX)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for request in self._requests:
            request.cancel()
        self._layout.control_socket.unlink(missing_ok=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = self._tasks.create_task(self._serve(reader, writer), name="control request")
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_WITHIN_S):
                line = await reader.readuntil(b"\n")
            try:
                reply = await self._answer(msgspec.json.decode(line, type=AnyRequest))
            except (EmbeddedError, msgspec.MsgspecError, OSError) as error:
                # OSError: a full disk, say, on which the change cannot be recorded.
                reply = Reply(error=str(error))
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            return  # The caller left, sent nothing in time, or sent no line: there is no one to answer.
        finally:
            writer.close()


def ask(layout: ClusterLayout, request: AnyRequest, *, within_s: float = _REPLY_WITHIN_S) -> Reply:
    """Ask the supervisor of a state directory. Raises NoCluster, or ControlRefused if it refuses or answers late."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        try:
            with _short_path(layout.control_socket) as address:
                connection.connect(address)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        except (FileNotFoundError, ConnectionError):
            raise NoCluster(
                f"no cluster runs in {layout.root}. Start it with `holdfast up`, or name the directory of another "
                "with --dir or HOLDFAST_DIR."
            ) from None
        except TimeoutError:
            raise ControlRefused(
                f"the supervisor of {layout.root} did not answer within {within_s:g} s; see {layout.log('supervisor')}"
            ) from None
    if not line:
        raise ControlRefused(f"the supervisor of {layout.root} ended before it answered")
    reply = msgspec.json.decode(line, type=Reply)
    if reply.error is not None:
        raise ControlRefused(reply.error)
    return reply


def is_running(layout: ClusterLayout) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(layout.control_socket) as address:
        return connection.connect_ex(address) == 0


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield the path in a form that fits into a socket address (108 bytes) at any depth of directories."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
