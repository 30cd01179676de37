"""A run of checks, from its submission to its verdict: results are shown as they arrive, and Ctrl-C stops the run."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
import msgspec

from holdfast.bus import Bus, BusError
from holdfast.cli.connect.bus import connected
from holdfast.cli.follow.follower import JobFollower
from holdfast.cli.output.tables import printable
from holdfast.engines.checks.checks_verdict import ChecksVerdict, ended, judge_checks, why_silent
from holdfast.engines.checks.folding import unfolded
from holdfast.engines.checks.references import NO_REFERENCES, References
from holdfast.engines.checks.result_log import ResultLog
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

GRANT_S = 20.0
"""Maximum time until idle nodes are granted and the checks start on them."""

STOP_S = 20.0
"""Maximum time to wait for the end of a stopped run, which ends without this command too."""


class ChecksNotRun(click.ClickException):
    """The checks did not run: no node is at fault by that."""

    exit_code = 2


class ChecksOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results and verdict of a run on `nodes`, which are in the order of their node ranks."""

    job: str
    suite: str
    nodes: tuple[str, ...]
    results: tuple[DiagnosticResult, ...]
    verdict: ChecksVerdict
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 if every node passed, 130 if interrupted, else 1."""
        if self.interrupted:
            return INTERRUPTED
        return 0 if self.verdict.passed else 1

    def as_dict(self) -> dict[str, Any]:
        whole: dict[str, Any] = msgspec.to_builtins(self)
        whole["passed"] = self.verdict.passed
        return whole


async def run_checks(
    spec: JobSpec, suite: str, limit_s: float | None, nats_url: str, references: References, *, quiet: bool
) -> ChecksOutcome:
    """Run `suite` as the job `spec`, give the nodes back, and return the outcome. Raises ChecksNotRun if the nodes
    could not be granted, or the checks did not start.
    """
    async with connected(nats_url, "diagnose") as bus:
        return await ChecksRun(spec, suite, limit_s, bus, references, quiet=quiet).run()


class ChecksRun(JobFollower[None]):
    """A run of `suite` as the job `spec`. No test may take longer than `limit_s` seconds."""

    def __init__(
        self,
        spec: JobSpec,
        suite: str,
        limit_s: float | None,
        bus: Bus,
        references: References = NO_REFERENCES,
        *,
        quiet: bool,
    ) -> None:
        super().__init__(spec.name, bus)
        self._references = references
        self._spec = spec
        self._suite = suite
        self._limit_s = limit_s
        self._quiet = quiet
        self._nodes: tuple[str, ...] = ()
        self._results = ResultLog()
        self._finished: set[str] = set()
        self._unanswered: dict[str, str] = {}
        self._started = asyncio.Event()
        self._answered = asyncio.Event()
        self._mostly = asyncio.Event()
        self._over = asyncio.Event()
        self._failure = ""
        self._interrupted = False

    async def run(self) -> ChecksOutcome:
        """Submit the run, wait for results, give the nodes back, judge. Raises ChecksNotRun as `run_checks` does."""
        await self.follow(self._submit_and_wait)
        if self._failure:
            raise ChecksNotRun(self._failure)
        results = tuple(unfolded(self._results))
        return ChecksOutcome(
            job=self.job,
            suite=self._suite,
            nodes=self._nodes,
            results=tuple(sorted(results, key=lambda result: (result.node or "", result.done))),
            verdict=judge_checks(self._nodes, results, self._silent(), self._references),
            interrupted=self._interrupted,
        )

    async def interrupt(self) -> None:
        self._interrupted = True
        self._print(f"stopping {self.job}")
        self._started.set()
        self._answered.set()

    def take(self, event: AnyEvent) -> None:
        match event:
            case NodesAwaited() if event.missing:
                self._fail_run(f"the nodes are not available: {event.missing}")
            case GenerationStarted():
                self._nodes = event.nodes
            case RanksStarted():
                self._started.set()
            case DiagnosticResult():
                self._results = self._results.having(event)
                if event.node and self._results.has_all(event.node):
                    self._finished.add(event.node)
                self._show(event)
            case ProcessExited() if event.node:
                self._unanswered.setdefault(event.node, why_silent(event))
                cause = event.exception.message if event.exception else event.detail
                self._print(f"{event.node}: the checks exited early{f': {cause}' if cause else ''}")
            case NodeLost() if event.node:
                self._unanswered.setdefault(event.node, f"no message from it for {event.silent_s:.1f} s")
            case JobFinished():
                self._over.set()
                self._started.set()
                self._answered.set()
                if event.outcome == "failed":
                    self._print(f"{self.job}: {event.reason}")
            case _:
                pass
        done = self._finished | self._unanswered.keys()
        if self._nodes and len(done) >= len(self._nodes) and done >= set(self._nodes):
            self._answered.set()
        if self._nodes and 2 * len(done) > len(self._nodes):
            self._mostly.set()

    async def _submit_and_wait(self) -> None:
        try:
            await self.submit(self._spec)
            self._print(f"{self.job}: suite {self._suite} on {', '.join(self._spec.only_nodes)}")
            await self._wait()
        except click.ClickException as error:
            self._fail_run(error.message)
        finally:
            await self._give_nodes_back()
        self.finish(None)

    async def _wait(self) -> None:
        """Wait until every node has answered, or can no longer be expected to."""
        if not await _within(self._started, GRANT_S):
            self._fail_run(
                f"the checks did not start within {GRANT_S:g} s; `holdfast jobs {self.job}` shows what they wait for"
            )
            return
        # Partners go through the same stages together: once most nodes are done, the others soon are, or never.
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

    async def _give_nodes_back(self) -> None:
        if self._over.is_set() or await _within(self._over, 1.0 if self._all_finished() else 0.0):
            return
        try:
            await self.stop()
        except (BusError, click.ClickException) as error:
            self._print(f"the nodes could not be given back: {error}; `holdfast stop {self.job}` does it")
            return
        if not await _within(self._over, STOP_S):
            self._print(f"{self.job} is still stopping; `holdfast jobs` shows when its nodes are free again")

    def _fail_run(self, why: str) -> None:
        self._failure = self._failure or printable(why)
        self._started.set()
        self._answered.set()

    def _all_finished(self) -> bool:
        return bool(self._nodes) and self._finished >= set(self._nodes)

    def _silent(self) -> dict[str, str]:
        """Return the nodes that did not finish their tests, with the reason of each."""
        if self._interrupted:
            return {}
        finished = ended(self._results)
        silent = {node: "it did not answer in time" for node in self._nodes if node not in finished}
        silent |= {node: why for node, why in self._unanswered.items() if node in silent}
        return {node: why for node, why in silent.items() if why}

    def _show(self, result: DiagnosticResult) -> None:
        if result.test == END:
            passed = ", ".join(dict.fromkeys(part.test for part in result.folded if part.status == "passed"))
            text = f"{result.node}: all tests done in {result.took_s:.1f} s"
            self._print(f"{text}; passed: {passed}" if passed else text)
            return
        partners = f" with {', '.join(result.peers)}" if result.peers else ""
        detail = f": {result.detail}" if result.detail and result.status != "passed" else ""
        self._print(f"[{result.done}/{result.total}] {result.node} {result.test}{partners} {result.status}{detail}")

    def _print(self, text: str) -> None:
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
