"""One run of checks, from its submission to its verdict: results are shown as they come, and Ctrl-C stops the run."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click
import msgspec

from holdfast import events
from holdfast.bus import Bus, BusError
from holdfast.cli.connect.ask import ask, asked_by
from holdfast.cli.connect.bus import connected
from holdfast.cli.output.tables import printable
from holdfast.engines.checks.checks_verdict import Verdict, answered, judge, why_silent
from holdfast.engines.checks.references import NO_REFERENCES, References
from holdfast.engines.checks.suites import END, deadline_s, meeting_limit_s
from holdfast.events import (
    AnyEvent,
    DiagnosticResult,
    GenerationStarted,
    JobFinished,
    NodeLost,
    NodesAwaited,
    ProcessExited,
    RanksStarted,
)
from holdfast.events.parts.job import JobSpec
from holdfast.exit_codes import INTERRUPTED
from holdfast.fresh_ids import uuid7
from holdfast.requests import CONTROLLER_REQUESTS, StopJob, SubmitJob
from holdfast.subjects import ROOT, event_subject

GRANT_S = 20.0
"""How long the nodes may take to be handed over and to start, with nothing in their way."""

STOP_S = 20.0
"""How long the end of a stopped run is waited for; it ends by itself in any case."""


class CouldNotCheck(click.ClickException):
    """The checks were not made: that says nothing of any node."""

    exit_code = 2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run on `nodes`, which are in the order of their node ranks."""

    job: str
    suite: str
    nodes: tuple[str, ...]
    results: tuple[DiagnosticResult, ...]
    verdict: Verdict
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0: every node passed; 1: not so."""
        if self.interrupted:
            return INTERRUPTED
        return 0 if self.verdict.passed else 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        whole: dict[str, Any] = msgspec.to_builtins(self)
        whole["passed"] = self.verdict.passed
        return whole


class Check:
    """A run of `suite` as the job `spec`."""

    def __init__(
        self,
        spec: JobSpec,
        suite: str,
        limit_s: float | None,
        nats_url: str,
        references: References = NO_REFERENCES,
        *,
        quiet: bool,
    ) -> None:
        self._references = references
        self._spec = spec
        self._suite = suite
        self._limit_s = limit_s
        self._nats_url = nats_url
        self._quiet = quiet
        self._nodes: tuple[str, ...] = ()
        self._results: dict[str, DiagnosticResult] = {}
        self._unanswered: dict[str, str] = {}
        self._started = asyncio.Event()
        self._answered = asyncio.Event()
        self._mostly = asyncio.Event()
        self._over = asyncio.Event()
        self._failure = ""
        self._interrupted = False

    async def run(self) -> Outcome:
        """Submit, wait, judge, and see to it that the nodes are given back.

        Raises:
            CouldNotCheck: they were not made.
        """
        async with connected(self._nats_url, "diagnose") as bus:
            listening = asyncio.create_task(self._listen(bus))
            # Who listens before asking misses nothing that follows from it.
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._interrupt)
            try:
                await self._submit(bus)
                await self._wait()
            finally:
                await self._end(bus)
                listening.cancel()
                await asyncio.wait([listening])
        if self._failure:
            raise CouldNotCheck(self._failure)
        results = tuple(self._results.values())
        return Outcome(
            job=self._spec.name,
            suite=self._suite,
            nodes=self._nodes,
            results=tuple(sorted(results, key=lambda result: (result.node or "", result.done))),
            verdict=judge(self._nodes, results, self._silent(), self._references),
            interrupted=self._interrupted,
        )

    # --- the run ----------------------------------------------------------------------------------

    async def _submit(self, bus: Bus) -> None:
        request = SubmitJob(id=uuid7(), asked_by=asked_by(), spec=self._spec)
        answer = await ask(bus, CONTROLLER_REQUESTS, request, "controller")
        if not answer.accepted:
            self._fail(answer.message)
        self._tell(f"{self._spec.name}: suite {self._suite} on {', '.join(self._spec.only_nodes)}")

    async def _wait(self) -> None:
        """Until every node has answered, or cannot be expected to any more."""
        if not await _within(self._started, GRANT_S):
            self._fail(
                f"the checks did not start within {GRANT_S:g} s; `holdfast jobs {self._spec.name}` shows what they "
                "wait for"
            )
            return
        # Partners go through the same stages side by side: once most are through, the others soon are, or never.
        last_s = 2 * meeting_limit_s(self._limit_s)
        limit_s = deadline_s(self._suite, len(self._nodes), self._limit_s)
        answered = asyncio.create_task(self._answered.wait())
        mostly = asyncio.create_task(self._mostly.wait())
        try:
            await asyncio.wait([answered, mostly], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                await asyncio.wait([answered], timeout=last_s if mostly.done() else 0.0)
        finally:
            answered.cancel()
            mostly.cancel()

    async def _end(self, bus: Bus) -> None:
        """Give the nodes back."""
        if self._over.is_set() or await _within(self._over, 1.0 if self._all_finished() else 0.0):
            return
        try:
            await ask(
                bus,
                CONTROLLER_REQUESTS,
                StopJob(id=uuid7(), asked_by=asked_by(), job=self._spec.name),
                "controller",
            )
        except (BusError, click.ClickException) as error:
            self._tell(f"the nodes could not be given back: {error}; `holdfast stop {self._spec.name}` does it")
            return
        if not await _within(self._over, STOP_S):
            self._tell(f"{self._spec.name} still stops; `holdfast jobs` shows when its nodes are free again")

    def _interrupt(self) -> None:
        self._interrupted = True
        self._tell(f"stopping {self._spec.name}")
        self._started.set()
        self._answered.set()

    def _fail(self, why: str) -> None:
        self._failure = self._failure or printable(why)
        self._started.set()
        self._answered.set()

    # --- what is heard ----------------------------------------------------------------------------

    async def _listen(self, bus: Bus) -> None:
        async for subject, body in bus.listen(f"{ROOT}.*.*.{self._spec.name}.>"):
            try:
                event = events.decode(body)
            except events.UnreadableEvent:
                continue
            if event_subject(event) == subject:
                self._take(event)

    def _take(self, event: AnyEvent) -> None:
        match event:
            case NodesAwaited() if event.missing:
                self._fail(f"the nodes cannot be had: {event.missing}")
            case GenerationStarted():
                self._nodes = event.nodes
            case RanksStarted():
                self._started.set()
            case DiagnosticResult():
                self._results[event.id] = event
                self._show(event)
            case ProcessExited() if event.node:
                self._unanswered.setdefault(event.node, why_silent(event))
                said = event.exception.message if event.exception else event.detail
                self._tell(f"{event.node}: the checks ended before their end{f': {said}' if said else ''}")
            case NodeLost() if event.node:
                self._unanswered.setdefault(event.node, f"nothing was heard of it for {event.silent_s:.1f} s")
            case JobFinished():
                self._over.set()
                self._started.set()
                self._answered.set()
                if event.outcome == "failed":
                    self._tell(f"{self._spec.name}: {event.reason}")
            case _:
                pass
        done = answered(self._results.values()) | self._unanswered.keys()
        if self._nodes and done >= set(self._nodes):
            self._answered.set()
        if self._nodes and 2 * len(done) > len(self._nodes):
            self._mostly.set()

    def _all_finished(self) -> bool:
        return bool(self._nodes) and answered(self._results.values()) >= set(self._nodes)

    def _silent(self) -> dict[str, str]:
        """Nodes that did not come to the end of their tests, and why."""
        if self._interrupted:
            return {}
        told = answered(self._results.values())
        silent = {node: "it did not answer in time" for node in self._nodes if node not in told}
        silent |= {node: why for node, why in self._unanswered.items() if node in silent}
        return {node: why for node, why in silent.items() if why}

    def _show(self, result: DiagnosticResult) -> None:
        if result.test == END:
            self._tell(f"{result.node}: all tests made in {result.took_s:.1f} s")
            return
        whom = f" with {', '.join(result.peers)}" if result.peers else ""
        said = f": {result.detail}" if result.detail and result.status != "passed" else ""
        self._tell(f"[{result.done}/{result.total}] {result.node} {result.test}{whom} {result.status}{said}")

    def _tell(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(f"[holdfast] {printable(text)}\n")
            sys.stderr.flush()


async def _within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
