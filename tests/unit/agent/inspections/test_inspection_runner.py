"""Checks beside each other: what hangs hangs alone, what fails says so, and whether a node is fit."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from holdfast.clock import system_now
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.judge import InspectionReport
from holdfast_agent.inspections.runner import Inspections
from holdfast_agent.inspections.threads import Abandonable, StillRunning

LOST = Trouble(device="0000:3b:00", kind="lost", detail="it is lost", confidence="evict")


def check(name: str, read: Callable[[], Reading], **fields: object) -> Check:
    common: dict[str, object] = {"source": "here", "interval_s": 0.01, "limit_s": 5.0}
    return Check(name=name, read=read, **{**common, **fields})  # type: ignore[arg-type]


class Heard:
    """What was said, and waiting for what will be."""

    def __init__(self) -> None:
        self.said: list[InspectionReport] = []
        self.fitness = 0
        self._changed = asyncio.Event()

    def say(self, check: str, said: Sequence[InspectionReport]) -> None:
        self.said += said
        self._changed.set()

    def fit(self) -> None:
        self.fitness += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def running(heard: Heard, *checks: Check) -> AsyncIterator[Inspections]:
    inspections = Inspections(checks, heard.say, system_now, 300.0, heard.fit)
    task = asyncio.create_task(inspections.run())
    try:
        yield inspections
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_hangs_hangs_alone_and_has_one_thread() -> None:
    answer, begun, heard = threading.Event(), [], Heard()

    def hangs() -> Reading:
        begun.append(threading.get_ident())
        answer.wait()
        return Reading()

    looks: list[int] = []

    def well() -> Reading:
        looks.append(1)
        return Reading()

    async with running(heard, check("hangs", hangs, limit_s=0.05), check("well", well)):
        await heard.until(lambda: len(looks) > 20 and len(heard.said) > 0)
        assert len(begun) == 1
        assert [(one.check, one.state) for one in heard.said] == [("hangs", "broken")]
        answer.set()
        await heard.until(lambda: len(heard.said) > 1)
        assert heard.said[1].state == "cleared"


async def test_what_may_show_why_a_job_is_slow_is_read_more_often_while_it_is() -> None:
    heard, reads = Heard(), {"pressure": 0, "clock": 0}

    def of(name: str) -> Callable[[], Reading]:
        def read() -> Reading:
            reads[name] += 1
            return Reading(troubles=(Trouble(is_momentary=True, detail="each reading is heard of"),))

        return read

    often = check("pressure", of("pressure"), interval_s=3600.0, slow_interval_s=0.01)
    async with running(heard, often, check("clock", of("clock"), interval_s=3600.0)) as inspections:
        await heard.until(lambda: inspections.has_looked)
        assert reads == {"pressure": 1, "clock": 1}
        inspections.note_slow_job()
        await heard.until(lambda: reads["pressure"] > 3)
        assert reads["clock"] == 1


async def test_a_hang_that_is_the_fault_itself_is_an_alert() -> None:
    answer, heard = threading.Event(), Heard()
    fault = Trouble(kind="hang", detail="the driver hangs", confidence="evict")

    def hangs() -> Reading:
        answer.wait()
        return Reading()

    async with running(heard, check("gpu", hangs, limit_s=0.05, hang=fault)) as inspections:
        await heard.until(lambda: len(heard.said) > 0 and inspections.has_looked)
        assert (heard.said[0].state, heard.said[0].confidence) == ("alert", "evict")
        assert [result.status for result in inspections.self_check()] == ["failed"]
        answer.set()
        await heard.until(lambda: len(heard.said) > 1)
        assert heard.said[1].state == "cleared"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionError(13, "Permission denied", "/dev/secret"), "/dev/secret: Permission denied"),
        (KeyError("avg60"), "the check failed: KeyError: 'avg60'"),
    ],
)
async def test_a_check_that_fails_says_so_and_is_no_fault_of_the_node(error: Exception, why: str) -> None:
    heard = Heard()

    def fails() -> Reading:
        raise error

    async with running(heard, check("mine", fails)) as inspections:
        await heard.until(lambda: len(heard.said) > 0 and inspections.has_looked)
        assert (heard.said[0].state, heard.said[0].detail) == ("broken", why)
        (result,) = inspections.self_check()
        assert (result.name, result.status, result.detail) == ("inspection mine", "unreadable", why)


async def test_a_node_is_unfit_while_a_trouble_without_doubt_lasts() -> None:
    heard, now = Heard(), [Reading(troubles=(LOST,))]
    async with running(heard, check("gpu", lambda: now[0])) as inspections:
        await heard.until(lambda: heard.fitness == 1)
        assert [result.status for result in inspections.self_check()] == ["failed"]
        now[0] = Reading()
        await heard.until(lambda: heard.fitness == 2)
        assert [result.status for result in inspections.self_check()] == ["ok"]


async def test_what_is_tolerated_or_hinted_at_makes_no_node_unfit() -> None:
    heard = Heard()
    slow = Trouble(device="eth0", kind="link", detail="down", confidence="tolerate")
    async with running(heard, check("network", lambda: Reading(troubles=(slow,)))) as inspections:
        await heard.until(lambda: heard.fitness == 1)
        (result,) = inspections.self_check()
        assert (result.status, result.detail) == ("ok", "eth0: down")


async def test_a_line_of_the_kernel_against_the_node_stays_with_it() -> None:
    heard, now = Heard(), [Reading(troubles=(Trouble(detail="Xid 79", confidence="evict", is_momentary=True),))]
    async with running(heard, check("kernel", lambda: now[0])) as inspections:
        await heard.until(lambda: heard.fitness == 1)
        now[0] = Reading()
        (result,) = inspections.self_check()
        assert result.status == "failed" and result.detail == "Xid 79; after the repair, restart the agent"


async def test_what_is_not_on_this_machine_is_not_in_its_self_check() -> None:
    heard = Heard()
    async with running(heard, check("gpu", lambda: Reading(absent="no GPU"))) as inspections:
        await heard.until(lambda: heard.fitness == 1)
        assert inspections.self_check() == () and heard.said == []


async def test_a_check_is_woken_before_its_interval_is_over() -> None:
    heard = Heard()
    descriptor, end = os.pipe()

    def read() -> Reading:
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, 100)
            return Reading(troubles=(Trouble(detail="a line", is_momentary=True),))
        return Reading()

    try:
        async with running(heard, check("kernel", read, interval_s=3600.0, wake=lambda: descriptor)):
            await heard.until(lambda: heard.fitness == 1)
            os.write(end, b"x")
            await heard.until(lambda: len(heard.said) == 1)
    finally:
        os.close(descriptor)
        os.close(end)


async def test_without_checks_a_node_is_fit_at_once() -> None:
    assert Inspections((), lambda check, said: None, system_now, 300.0).has_looked


async def test_what_comes_back_late_is_the_answer_to_the_next_question() -> None:
    answer, calls = threading.Event(), []

    def slow() -> int:
        calls.append(1)
        answer.wait()
        return len(calls)

    abandonable = Abandonable("slow", slow)
    with pytest.raises(StillRunning):
        await abandonable.call(0.01)
    with pytest.raises(StillRunning) as still:
        await abandonable.call(0.01)
    assert still.value.for_s >= 0.02, "since the first call"
    answer.set()
    assert await abandonable.call(30) == 1
    assert await abandonable.call(30) == 2


async def test_a_call_that_ends_its_thread_is_an_error_and_the_next_one_is_made() -> None:
    exits = Abandonable("exits", lambda: sys.exit("no such card"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such card"):
            await exits.call(30)
