"""Scheduler of the checks beside the agent's other tasks.

Each check has a task, and each reading a thread with a time limit: a hanging check affects no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec
import structlog

from holdfast.clock import Now
from holdfast.events.parts.job import CheckResult
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable
from holdfast_agent.inspections.judge import CheckState, InspectionReport, confidence_of, judge
from holdfast_agent.inspections.threads import Abandonable, StillRunning

FIRST_ROUND_S = 5.0
"""Time limit of the first round, after which the node registers with hanging checks reported as such."""

SLOW_S = 30.0
"""Time after a question about a slow job for which checks that may show why are read more often."""

WAKE_PAUSE_S = 0.1
"""Pause after a wake-up, so that simultaneous events are read together."""

log = structlog.get_logger(__name__)


class CheckStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A check with its newest reading (None: not returned yet) and its state."""

    check: Check
    reading: Reading | None = None
    state: CheckState = CheckState()


class Inspections:
    """One node's checks. `report` follows each reading, even without reports; `on_fitness` a change of fitness."""

    def __init__(
        self,
        checks: Sequence[Check],
        report: Callable[[str, Sequence[InspectionReport]], None],
        now: Now,
        again_s: float,
        on_fitness: Callable[[], None] = lambda: None,
    ) -> None:
        self._report = report
        self._now = now
        self._again_s = again_s
        self._on_fitness = on_fitness
        self._statuses = {check.name: CheckStatus(check=check) for check in checks}
        self._looked = asyncio.Event()
        self._has_begun = not checks
        self._unfit: frozenset[tuple[str, str, str]] = frozenset()
        self._slow_until = float("-inf")
        self._is_slow = asyncio.Event()

    @property
    def has_looked(self) -> bool:
        """True once the first round is over, from when registration includes the inspections."""
        return self._has_begun

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._statuses:
                group.create_task(self._watch(name), name=f"inspection {name}")
            if not self._has_begun:
                group.create_task(self._first_round(), name="first round of inspections")

    def statuses(self) -> tuple[CheckStatus, ...]:
        return tuple(self._statuses.values())

    def note_slow_job(self) -> None:
        """Read more often, for a while, the checks that may show why a job of this node is slow."""
        self._slow_until = asyncio.get_running_loop().time() + SLOW_S
        self._is_slow.set()

    def self_check(self) -> tuple[CheckResult, ...]:
        """Return the certain faults that forbid giving this node ranks."""
        return tuple(
            _result(status) for status in self._statuses.values() if status.reading is None or not status.reading.absent
        )

    async def _first_round(self) -> None:
        try:
            async with asyncio.timeout(FIRST_ROUND_S):
                while any(status.reading is None for status in self._statuses.values()):
                    self._looked.clear()
                    await self._looked.wait()
        except TimeoutError:
            late = [name for name, status in self._statuses.items() if status.reading is None]
            log.warning("checks have not returned yet", checks=late)
        self._has_begun = True
        self._unfit = self._unfit_now()
        self._on_fitness()

    async def _watch(self, name: str) -> None:
        check = self._statuses[name].check
        reader = Abandonable(f"inspection-{name}", check.read)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            reading = await look(check, reader)
            self._take(name, reading)
            await self._pause(check, began)

    async def _pause(self, check: Check, began: float) -> None:
        """Wait until the check is due again, or wakes up."""
        if check.slow_interval_s is None:
            await _pause(check, _left_s(began, check.interval_s))
            return
        if asyncio.get_running_loop().time() >= self._slow_until:
            self._is_slow.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_left_s(began, check.interval_s)):
                    await self._is_slow.wait()
        if self._is_slow.is_set():
            await asyncio.sleep(_left_s(began, check.slow_interval_s))

    def _take(self, name: str, reading: Reading) -> None:
        before = self._statuses[name]
        state, reports = judge(before.check, before.state, reading, self._now(), self._again_s)
        self._statuses[name] = CheckStatus(check=before.check, reading=reading, state=state)
        self._looked.set()
        for one in reports:
            log.info("inspection", check=one.check, state=one.state, device=one.device, detail=one.detail)
        self._report(name, reports)
        if self._has_begun and (unfit := self._unfit_now()) != self._unfit:
            self._unfit = unfit
            self._on_fitness()

    def _unfit_now(self) -> frozenset[tuple[str, str, str]]:
        return frozenset(
            (name, trouble.device, trouble.kind)
            for name, status in self._statuses.items()
            for trouble in _without_doubt(status)
        )


def _left_s(began: float, interval_s: float) -> float:
    return max(0.0, began + interval_s - asyncio.get_running_loop().time())


async def look(check: Check, reader: Abandonable[Reading]) -> Reading:
    """Return one reading within the time limit. A check that fails is reported as unreadable, not as a node fault."""
    try:
        return await reader.call(check.limit_s)
    except StillRunning as error:
        if check.hang is not None:
            return Reading(troubles=(check.hang,))
        return unreadable(f"{check.source} has not answered for {error.for_s:.0f} s")
    except OSError as error:
        return unreadable(f"{error.filename or check.source}: {error.strerror or error}")
    except Exception as error:
        # Third-party code reading third-party data: it must not end the agent.
        log.warning("a check failed", check=check.name, exc_info=error)
        return unreadable(f"the check failed: {type(error).__name__}: {error}")


async def _pause(check: Check, pause_s: float) -> None:
    """Wait until the interval is over, or the check wakes up."""
    descriptor = check.wake() if check.wake is not None else None
    if descriptor is None:
        await asyncio.sleep(pause_s)
        return
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, woken.set)
    try:
        async with asyncio.timeout(pause_s):
            await woken.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(descriptor)
    await asyncio.sleep(min(WAKE_PAUSE_S, pause_s))


def _without_doubt(status: CheckStatus) -> tuple[Trouble, ...]:
    lasting = tuple(one for one in status.state.raised if confidence_of(status.check, one) == "evict")
    return lasting + tuple(status.state.struck.values())


def _result(status: CheckStatus) -> CheckResult:
    name = f"inspection {status.check.name}"
    if status.reading is None:
        return CheckResult(name=name, status="unreadable", detail="has not returned yet")
    if evict := _without_doubt(status):
        cure = "; after the repair, restart the agent" if status.state.struck else ""
        return CheckResult(name=name, status="failed", detail=_words(evict) + cure)
    if status.reading.unread:
        return CheckResult(name=name, status="unreadable", detail="; ".join(status.reading.unread.values()))
    return CheckResult(name=name, status="ok", detail=_words(status.state.raised))


def _words(troubles: Sequence[Trouble]) -> str:
    return "; ".join(
        f"{trouble.device}: {trouble.detail}" if trouble.device else trouble.detail for trouble in troubles
    )
