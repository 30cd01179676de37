"""What an agent and its zygote send each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.node.frames import WireError, framed, receive, send
from holdfast.node.link import Link
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.companions.zygote_link import ZygoteLink
from holdfast_agent.zygote import plan_file
from holdfast_agent.zygote.__main__ import listen
from holdfast_agent.zygote.wire import (
    MESSAGE_BYTES_MAX,
    Attach,
    End,
    RankPlan,
    Report,
    StartPlanned,
    StartRanks,
    StopStore,
    Welcome,
    commands,
    reports,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

M = TypeVar("M")

START = StartRanks(
    fence=(1, 2),
    order=b"the whole order",
    ranks=tuple(
        RankPlan(
            rank=rank,
            local_rank=rank,
            environment={"SECRET": "x" * 1000, "RANK": str(rank)},
            cwd="/",
            script="train.py",
            args=("--key", "secret"),
            is_module=False,
            start="fork",
            log_stem=f"/logs/rank-{rank}",
            error_file="/errors",
        )
        for rank in range(3)
    ),
)
WELCOME = Welcome(pid=1, store_ports=(), python="", torch="", preload_s=0.0, ranks=(), exits=())


class Scene:
    """An agent's link, and the zygote's end of it."""

    def __init__(self, link: ZygoteLink, zygote: socket.socket, reports: asyncio.Queue[Report]) -> None:
        self.link = link
        self.zygote = zygote
        self._reports = reports

    async def welcomed(self, welcome: Welcome, descriptor: int | None = None) -> Report:
        """Answer the agent; return what it makes of the answer."""
        send(self.zygote, welcome, descriptor)
        async with asyncio.timeout(30):
            return await self._reports.get()

    async def next(self, decoder: msgspec.msgpack.Decoder[M]) -> tuple[M, int | None]:
        return await asyncio.to_thread(receive, self.zygote, decoder)


@contextlib.asynccontextmanager
async def attached(directory: Path) -> AsyncIterator[Scene]:
    reports: asyncio.Queue[Report] = asyncio.Queue()
    link = ZygoteLink(directory, "127.0.0.1", Timeouts(), reports.put_nowait, lambda: None)
    with listen(directory) as listener:
        running = asyncio.create_task(link.run())
        zygote, _ = await asyncio.to_thread(listener.accept)
    zygote.settimeout(30)
    scene = Scene(link, zygote, reports)
    try:
        assert await scene.next(commands) == (Attach(orphan_s=60.0), None)
        yield scene
    finally:
        link.end(End())
        zygote.close()
        await running


async def test_a_zygote_that_takes_a_connection_while_it_dies_is_replaced_by_the_nursery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def born(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("holdfast_agent.companions.zygote_link.born", born)
    monkeypatch.setattr("holdfast_agent.companions.companion.start", lambda *_: pytest.fail("it imports torch itself"))
    reports: asyncio.Queue[Report] = asyncio.Queue()
    link = ZygoteLink(tmp_path, "127.0.0.1", Timeouts(), reports.put_nowait, lambda: None)
    with listen(tmp_path) as listener:
        running = asyncio.create_task(link.run())
        serves, _ = await asyncio.to_thread(listener.accept)
        send(serves, WELCOME)
        await reports.get()
        serves.close()
        # Connections of a killed process end before its listening socket.
        late, _ = await asyncio.to_thread(listener.accept)
    late.close()
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert asked.is_set()
    running.cancel()
    await asyncio.wait([running])


async def test_a_silent_nursery_leaves_a_node_with_orders_time_to_start_its_zygote_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()

    async def start(*_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("holdfast_agent.companions.companion.start", start)
    monkeypatch.setenv(NURSERY_VARIABLE, str(tmp_path / "nursery.sock"))
    timeouts = Timeouts(start_s=2.0, stop_grace_s=0.5, failed_grace_s=0.5)
    reports: asyncio.Queue[Report] = asyncio.Queue()
    link = ZygoteLink(tmp_path, "127.0.0.1", timeouts, reports.put_nowait, lambda: None)
    with listen(tmp_path, "nursery.sock"):
        with listen(tmp_path) as listener:
            running = asyncio.create_task(link.run())
            serves, _ = await asyncio.to_thread(listener.accept)
            send(serves, WELCOME)
            await reports.get()
        serves.close()
        async with asyncio.timeout(30):
            await started.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_plans_and_order_go_in_a_file_beside_the_command(tmp_path: Path) -> None:
    async with attached(tmp_path) as scene:
        assert await scene.welcomed(WELCOME) == WELCOME
        scene.link.send(StopStore(), START, StopStore(keep=START.fence))
        assert await scene.next(commands) == (StopStore(), None)
        start, plans = await scene.next(commands)
        assert await scene.next(commands) == (StopStore(keep=START.fence), None)
        assert isinstance(start, StartPlanned)
        assert plans is not None
        assert b"secret" not in framed(start).lower()
        assert tuple(plan_file.read_plan(plans, slot) for slot in start.ranks) == START.ranks
        with pytest.raises(PermissionError):
            os.pwrite(plans, b"another", 0)
        # A zygote gives the file back to the agent that comes later.
        later = msgspec.structs.replace(WELCOME, order_in_file=start.order)
        told = await scene.welcomed(later, plans)
        os.close(plans)
        assert told == msgspec.structs.replace(later, order=START.order)


def test_each_descriptor_arrives_with_its_message_through_a_narrow_socket() -> None:
    before = os.listdir("/proc/self/fd")
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, receiver = Link(one, commands, MESSAGE_BYTES_MAX), Link(other, reports, MESSAGE_BYTES_MAX)
    for number in range(60):
        file = os.memfd_create("test") if number % 3 else None
        if file is not None:
            os.write(file, str(number).encode())
        place = (0, 2) if file is not None else None
        sender.put(msgspec.structs.replace(WELCOME, pid=number, python="x" * 50 * number, order_in_file=place), file)
    arrived: list[int] = []
    while len(arrived) < 60:
        sender.flush()
        for report in receiver.receive():
            assert isinstance(report, Welcome)
            arrived.append(report.pid)
            if report.order_in_file is not None:
                file = receiver.descriptor()
                assert plan_file.read(file, report.order_in_file) == str(report.pid).encode()
                os.close(file)
    assert arrived == list(range(60))
    with pytest.raises(WireError, match="without its file"):
        receiver.descriptor()
    # What nobody takes is closed with the link.
    sender.put(WELCOME, os.memfd_create("test"))
    sender.flush()
    sender.put(WELCOME, os.memfd_create("test"))
    with pytest.raises(BlockingIOError):
        list(sender.receive())
    assert [report.pid for report in receiver.receive() if isinstance(report, Welcome)] == [1]
    sender.close()
    with pytest.raises(EOFError):
        list(receiver.receive())
    receiver.close()
    assert os.listdir("/proc/self/fd") == before
