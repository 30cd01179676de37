"""The agent's request for a zygote from the machine's nursery, if there is one."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path

import msgspec
import structlog

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.node.frames import Frames, WireError, framed
from holdfast.node.kernel import is_stopped
from holdfast_agent.companions import companion
from holdfast_agent.companions.environment import public_environment
from holdfast_agent.zygote import inherited
from holdfast_agent.zygote.birth import BirthReply, BirthRequest, Declined

FIRST_WITHIN_S = 120.0
"""Time for the nursery to import torch and fork an agent's first zygote. On a busy machine that takes a minute, and
imports by all agents at once would take several. A new node has no orders meanwhile: it registers with a zygote."""

LOOK_EVERY_S = 0.5
"""Interval at which the agent checks that the nursery, which does not reply yet, is not stopped."""

log = structlog.get_logger(__name__)


class NoBirth(Exception):
    """The nursery is absent, does not answer, or declines."""


class Newborn:
    """A zygote that the nursery forked. It is not a child of this process: its exit code is in the nursery's log."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    async def ended(self) -> None:
        """Wait until the process has exited."""
        await companion.readable(self._pidfd)
        os.close(self._pidfd)


async def born(directory: Path, address: str, log_file: Path, within_s: float) -> Newborn | None:
    """Return a zygote for this state directory once it is ready or has exited; None: start one yourself."""
    path = os.environ.get(NURSERY_VARIABLE)
    if not path:
        return None
    try:
        async with asyncio.timeout(within_s):
            return await ask(Path(path), directory, address, log_file)
    except (OSError, WireError, NoBirth, TimeoutError) as error:
        log.warning("no zygote from the nursery, so one is started here", reason=str(error) or "no answer in time")
        return None


async def ask(path: Path, directory: Path, address: str, log_file: Path) -> Newborn:
    """Return the zygote. Raises NoBirth, WireError or OSError if there is none."""
    request = BirthRequest(
        state_dir=str(directory),
        address=address,
        environment=tuple(os.fsencode(f"{name}={value}") for name, value in public_environment(os.environ).items()),
        python=inherited.python(),
        release=inherited.RELEASE,
        blocked=inherited.blocked_signals(),
    )
    ready, ready_in = os.pipe()
    try:
        with companion.private_log(log_file) as output, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            await _connect(connection, path)
            newborn = await _exchange(connection, request, [output.fileno(), ready_in])
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(ready_in)
    await companion.end_of(ready)
    return newborn


async def _connect(connection: socket.socket, path: Path) -> None:
    connection.setblocking(False)
    # The path may exceed the 107 bytes of a socket address.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


async def _exchange(connection: socket.socket, request: BirthRequest, descriptors: list[int]) -> Newborn:
    body = framed(request)
    sent = socket.send_fds(connection, [body], descriptors)
    if sent < len(body):
        await asyncio.get_running_loop().sock_sendall(connection, body[sent:])
    frames = Frames(msgspec.msgpack.Decoder(BirthReply))
    pidfds: list[int] = []
    try:
        while True:
            await _until_replied(connection)
            data, received, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            pidfds += received
            if not data:
                raise NoBirth("the nursery ended")
            for reply in frames.feed(data):
                if isinstance(reply, Declined):
                    raise NoBirth(reply.reason)
                os.set_inheritable(pidfds[0], False)
                return Newborn(reply.pid, pidfds.pop())
    finally:
        for descriptor in pidfds:
            os.close(descriptor)


async def _until_replied(connection: socket.socket) -> None:
    """Wait until the nursery has replied or closed. Raises NoBirth if it is stopped: that may last."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    nursery = int(struct.unpack("3i", credentials)[0])
    while True:
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                return await companion.readable(connection.fileno())
        except TimeoutError:
            if is_stopped(nursery):
                raise NoBirth("the nursery is stopped") from None
