"""A controller with a job whose ranks fail, and the records that follow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.effects import Effect
from holdfast.engines.checks.suites import END
from holdfast.engines.record.history import MarkKind
from holdfast.events import (
    DiagnosticResult,
    Event,
    FirstStep,
    NodesAwaited,
    NodesGranted,
    NodesRequested,
    ProcessExited,
    Progress,
    RanksStarted,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import RankException, RankProgress
from holdfast.fresh_ids import uuid7
from holdfast.requests import SubmitJob
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Checking, Claiming
from holdfast_controller.service import Controller

E = TypeVar("E", bound=Event)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ECC = RankException(type="RuntimeError", message="CUDA error: uncorrectable ECC error encountered", traceback="t")


class FailingJob:
    """A controller with one job, of four nodes by default, that makes no step between its failures."""

    def __init__(self, nodes: tuple[str, ...] = ("a", "b", "c", "d"), rules: Rules | None = None) -> None:
        self.now = NOW
        self.controller = Controller(rules or Rules())
        self.events: list[Any] = []
        self.submit("job", nodes)

    @property
    def state(self) -> JobState:
        return self.controller.jobs["job"]

    def submit(self, name: str, nodes: tuple[str, ...], racks: int = 0) -> None:
        """Start another job on these nodes, which are spread over so many racks; 0: all are in `r1`."""
        spec = JobSpec(
            name=name, script="train.py", nnodes=len(nodes), nproc_per_node=2, cwd="/", directory=f"/jobs/{name}"
        )
        self._adopt(self.controller.on_request(SubmitJob(id=uuid7(), asked_by="ada", spec=spec), self.now))
        self.grant(*nodes, job=name, racks=racks)

    def grant(self, *nodes: str, job: str = "job", racks: int = 0) -> None:
        asked = [event for event in self.events if isinstance(event, NodesRequested) and event.job == job][-1]
        grants = (
            Grant(
                node=node,
                epoch=1,
                address="10.0.0.1",
                store_ports=(29500,),
                rack=f"r{number % racks}" if racks else "r1",
            )
            for number, node in enumerate(nodes)
        )
        self.send(NodesGranted, job=job, claim=asked.id, grants=tuple(grants))

    def send(self, kind: type, **fields: Any) -> None:
        self.now += timedelta(seconds=1)
        event = kind(id=uuid7(), at=self.now, source="test", **fields)
        self._adopt(self.controller.on_event(event, self.now))

    def exit(self, node: str, generation: int | None = None, job: str = "job", **fields: Any) -> None:
        generation = self.controller.jobs[job].generation if generation is None else generation
        fields = {"rank": 0, "local_rank": 0, "step": 5, "steps_done": 5, "exited_at": self.now, **fields}
        self.send(ProcessExited, node=node, job=job, generation=generation, **fields)

    def print_ecc(self, node: str, rank: int, free: str = "") -> None:
        """Let a rank end with the words of broken memory, while one node at most is free. Checks of the nodes pass, and
        the job trains again."""
        self.exit(node, rank=rank, exit_code=1, exception=ECC, step=self.state.step + 1)
        self.answer(free)
        if free:
            # Where two were asked for, one of them for a test, one may be asked for next.
            self.answer(free)
        if isinstance(self.state.phase, Checking):
            for test in ("gemm", END):
                for member in self.state.nodes:
                    self._of(DiagnosticResult, member, run="r", test=test, status="passed")
        self.train()

    def answer(self, free: str) -> None:
        """Answer the request for nodes in the place of some that are to leave, while one is free; "": none."""
        if (asked := self.state.replacement) is None:
            return
        wanted = self.of(NodesRequested)[-1].count
        if free and wanted == 1:
            self.grant(free)
        else:
            self.send(NodesAwaited, job="job", claim=asked.claim, wanted=wanted, available=int(bool(free)))

    def train(self, job: str = "job") -> None:
        """Let a job run, if it has all of its nodes, past the step at which it failed."""
        state = self.controller.jobs[job]
        if isinstance(state.phase, Claiming):
            return
        step = max(state.step, 5) + 1
        for node in state.nodes:
            self._of(RanksStarted, node, job, ranks=(), took_s=0.1)
        for node in state.nodes:
            self._of(FirstStep, node, job, step=step, completed_at=self.now)
        progress = RankProgress(rank=0, step=step + 1, phase="forward")
        self._of(Progress, state.nodes[0], job, ranks=(progress,))

    def pass_time(self, seconds: float) -> None:
        """Let the time pass; no event comes meanwhile."""
        began, self.now = self.now, self.now + timedelta(seconds=seconds)
        self._adopt(self.controller.on_time(self.now, began - timedelta(hours=1)))

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def marks(self, node: str) -> list[tuple[MarkKind, bool]]:
        record = self.controller.records.get(node)
        return [(mark.kind, mark.counts) for mark in record.marks] if record else []

    def _of(self, kind: type, node: str, job: str = "job", **fields: Any) -> None:
        self.send(kind, node=node, job=job, generation=self.controller.jobs[job].generation, **fields)

    def _adopt(self, effect: Effect) -> None:
        self.controller.adopt(effect)
        self.events += effect.events
