"""An analyzer and a job of four ranks, which stalls on demand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import events
from holdfast.effects import Effect
from holdfast.events import (
    AnyEvent,
    CollectiveTrace,
    Event,
    Progress,
    StackDump,
    StepsMeasured,
)
from holdfast.events.parts.devices import NodeActivity
from holdfast.events.parts.ranks import RankProgress
from holdfast.events.parts.samples import StepSample
from holdfast.events.parts.traces import Frame, ProcessStacks, RankTrace, ThreadStack
from holdfast.ids import named_id
from holdfast.orders.trace import TraceOrder
from holdfast.settings.findings.hang import HangPolicy
from holdfast.settings.load import Settings
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer

START = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ("a", "b", "c", "d")
Calls = tuple[tuple[str, str], ...]
WAITS: Calls = (
    ("wait", "/torch/distributed/distributed_c10d.py"),
    ("all_reduce", "/torch/distributed/distributed_c10d.py"),
)
STANDS: Calls = (("acquire", "/usr/lib/python3/threading.py"), ("load", "/job/train.py"))


class Scene:
    """An analyzer, and a job of one rank on each of four nodes. JSON lies between them."""

    def __init__(self, policy: HangPolicy | None = None, mesh: str | None = None) -> None:
        self.mesh = mesh
        self.analyzer = Analyzer(engines_of(Settings(hang=policy or HangPolicy())))
        self.now = START
        self.still_s = 0.0
        self.emitted: list[Event] = []
        self.wanted: list[TraceOrder] = []
        self.number = 0
        self.generation = 1

    def receive(self, event: AnyEvent) -> None:
        self.adopt(self.analyzer.on_event(events.decode(events.encode(event)), self.now))

    def adopt(self, effect: Effect) -> None:
        self.analyzer.adopt(effect)
        self.emitted += effect.events
        self.wanted += [order for order in effect.orders if isinstance(order, TraceOrder)]

    def common(self, node: str) -> dict[str, Any]:
        self.number += 1
        return {
            "id": named_id(self.now, self.number),
            "at": self.now,
            "source": f"agent/{node}",
            "node": node,
            "job": "job",
            "generation": self.generation,
        }

    def second(
        self,
        guilty: int | None = 2,
        *,
        moves: bool = False,
        deaf: bool = False,
        nodes: tuple[str, ...] = NODES,
        steps: int = 20,
        phase: str = "train",
    ) -> None:
        """A second goes by; `guilty` stands outside of the collective that the others wait in. `deaf`: it has received
        the bus for no longer than that."""
        self.now += timedelta(seconds=1)
        self.still_s = 0.0 if moves else self.still_s + 1.0
        for rank, node in enumerate(NODES):
            inside = guilty is not None and rank != guilty
            progress = RankProgress(
                rank=rank,
                step=20,
                phase=phase,
                steps_done=steps,
                since_change_s=self.still_s,
                since_step_s=self.still_s,
                in_collective=int(inside),
                collective="all_reduce" if inside else "",
            )
            if node in nodes:
                self.receive(
                    Progress(**self.common(node), ranks=(progress,), world_size=4, nproc_per_node=1, mesh=self.mesh)
                )
        self.adopt(self.analyzer.on_time(self.now, self.now if deaf else START))

    def until_asked(self, **how: Any) -> None:
        asked = len(self.wanted)
        while len(self.wanted) == asked:
            assert self.still_s < 1000, "nobody is asked"
            self.second(**how)

    def answer(
        self,
        *nodes: str,
        guilty: int | None = 2,
        others: Calls = WAITS,
        parts: int = 1,
        activity: Mapping[str, NodeActivity] | None = None,
        **of_guilty: Any,
    ) -> None:
        """These nodes answer what was asked last. `activity`: of the devices of nodes."""
        trace = self.wanted[-1].id
        for node in nodes or NODES:
            rank = NODES.index(node)
            calls = STANDS if rank == guilty else others
            frames = tuple(Frame(function=function, file=file, line=7) for function, file in calls)
            main = (Frame(function="main", file="/job/train.py", line=9),)
            about: dict[str, Any] = {"state": "S", "cpu_share": 0.0, "io_bytes_per_s": 0.0}
            about |= {"threads": (ThreadStack(frames=(*frames, *main), is_main=True),)}
            about |= of_guilty if rank == guilty else {}
            process = ProcessStacks(rank=rank, node=node, pid=100 + rank, **about)
            for part in range(1, parts + 1):
                self.receive(
                    StackDump(
                        **self.common(node),
                        trace=trace,
                        processes=(process,) if part == 1 else (),
                        part=part,
                        parts=parts,
                        activity=(activity or {}).get(node) if part == 1 else None,
                    )
                )
            ranks = (RankTrace(rank=rank, node=node, unread="it has no ring of collectives"),)
            self.receive(CollectiveTrace(**self.common(node), trace=trace, origin=START, ranks=ranks))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.emitted if isinstance(event, kind)]


def train(scene: Scene) -> None:
    """Its pace is known: a step each tenth of a second."""
    samples = tuple(StepSample(rank=0, step=step, ended_at=START, duration_s=0.1) for step in range(20))
    scene.receive(StepsMeasured(**scene.common("a"), samples=samples, world_size=4))
    scene.emitted.clear()


def hanging(policy: HangPolicy | None = None) -> Scene:
    scene = Scene(policy)
    train(scene)
    scene.until_asked()
    return scene
