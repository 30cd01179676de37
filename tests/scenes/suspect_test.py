"""A run of tests of nodes that were evicted together, to be played event by event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from holdfast.events import (
    AnyEvent,
    DiagnosticResult,
    Event,
    Eviction,
    EvictionRevoked,
    NodesGranted,
    RanksFinished,
    RanksStarted,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import RankException
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id
from holdfast.symptoms import Symptom
from holdfast_controller.plan.checks.suspect_test import follow_up
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.incident.incident import Incident
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming
from holdfast_controller.plan.planner import Planner

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUSPECTS = ("a", "b", "c")
PLANNER = Planner(Rules())
CAUSE = uuid7(unix_ms=1)
TRAINING = JobState(
    spec=JobSpec(name="job", script="t.py", cwd="/", directory="/jobs/job", nnodes=4, nproc_per_node=2),
    phase=Claiming(),
    submitted_at=NOW,
    members=(None, None, None, Grant(node="d", epoch=1, address="10.0.0.4", store_ports=(29500,))),
    incident=Incident(id=CAUSE, opened_at=NOW, symptom=Symptom.NO_FIRST_STEP, failed_step=7, named="job_hang"),
)
GRANTS = tuple(Grant(node=node, epoch=5, address="10.0.0.1", store_ports=(29500,)) for node in SUSPECTS)
EXIT = {"rank": 0, "local_rank": 0, "step": -1, "steps_done": 0, "exited_at": NOW}
ERROR = RankException(type="KeyError", message="'b'", traceback="Traceback ...")

E = TypeVar("E", bound=Event)


def evictions(*nodes: str, together: tuple[str, ...] = ()) -> list[Event]:
    return [
        Eviction(
            id=derived_id(CAUSE, node),
            at=NOW,
            source="controller",
            job="job",
            incident=CAUSE,
            node=node,
            blocked_for_s=60.0,
            together=together,
            reason="one of them",
        )
        for node in nodes
    ]


class Run:
    """A run of tests, played event by event."""

    def __init__(self, *suspects: str, of: JobState = TRAINING) -> None:
        suspects = suspects or SUSPECTS
        outcome = follow_up(evictions(*suspects, together=suspects), of, NOW, PLANNER.rules)
        assert outcome is not None and outcome.state is not None
        self.state = outcome.state
        self.emitted: list[Event] = list(outcome.events)
        self.now = NOW

    def receive(self, kind: type[E], **fields: Any) -> None:
        self.now += timedelta(seconds=1)
        common = {"id": uuid7(), "at": self.now, "source": "test", "job": self.state.job}
        wanted = {"generation": self.state.generation, "claim": self.state.claim, "ranks": (), "took_s": 0.1, **fields}
        given = common | {name: value for name, value in wanted.items() if name in kind.__struct_fields__}
        event: AnyEvent = msgspec.convert({"type": kind(**given).type, **msgspec.to_builtins(given)}, kind)
        self._adopt(PLANNER.event(self.state, event, self.now))

    def wait(self) -> None:
        assert self.state.deadline is not None
        self.now = self.state.deadline.until
        self._adopt(PLANNER.time(self.state, self.now, NOW))

    def start(self, *nodes: str) -> None:
        grants = tuple(Grant(node=node, epoch=5, address="10.0.0.1", store_ports=(29500,)) for node in nodes)
        self.receive(NodesGranted, grants=grants)
        for node in nodes:
            self.receive(RanksStarted, node=node)

    def answer(self, node: str, status: str = "passed", detail: str = "") -> None:
        self.receive(DiagnosticResult, node=node, run="r", test="gemm", status=status, detail=detail)
        self.receive(DiagnosticResult, node=node, run="r", test="end", status="passed")
        self.receive(RanksFinished, node=node)

    def reach(self, rates: dict[str, float], links: dict[tuple[str, str], float]) -> None:
        """Every node of a run tells its speed, and what it reaches with others, and ends."""
        for node, rate in rates.items():
            speed = {"value": rate, "unit": "GFLOP/s", "hardware": "cpu"}
            self.receive(DiagnosticResult, node=node, run="r", test="speed", status="passed", **speed)
            for pair, reached in links.items():
                if node in pair:
                    (other,) = set(pair) - {node}
                    gathered = {"peers": (other,), "value": reached, "unit": "GB/s"}
                    self.receive(DiagnosticResult, node=node, run="r", test="all_gather", status="passed", **gathered)
            self.answer(node)

    def meet(self, **outcomes: str) -> None:
        """The outcome of each pair: `ab="failed"`; then all have answered."""
        for pair, status in outcomes.items():
            for node, peer in (pair, pair[::-1]):
                self.receive(
                    DiagnosticResult,
                    node=node,
                    peers=(peer,),
                    run="r",
                    test="all_gather",
                    status=status,
                    symptom="network_error" if status == "failed" else "",
                )
        for node in self.state.nodes:
            self.answer(node)

    def one(self, kind: type[E]) -> E:
        (only,) = (event for event in self.emitted if isinstance(event, kind))
        return only

    def revoked(self) -> dict[str | None, int]:
        return {event.node: event.epoch for event in self.emitted if isinstance(event, EvictionRevoked)}

    def _adopt(self, outcome: Any) -> None:
        self.state = outcome.state
        self.emitted += outcome.events
