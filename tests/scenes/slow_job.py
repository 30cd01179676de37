"""An analyzer and a job of three nodes that gets slow; the nodes answer what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.effects import Effect
from holdfast.events import (
    AnyEvent,
    CollectivesProfiled,
    Event,
    FailSlowLocated,
    SlownessTested,
    StepsMeasured,
)
from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import IterationSample, ProfiledCalls, RankProfile, StepSample
from holdfast.ids import named_id
from holdfast.orders.slow import SlowOrder
from holdfast.requests import LocateSlowness
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.settings.load import Settings
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from tests.scenes.analyzer import START

STEP_S = 1.0
NODES = 3


class Scene:
    """A job of three nodes with a rank each, and an analyzer. What it says is kept; every event comes twice."""

    def __init__(self, policy: SlowPolicy | None = None) -> None:
        self.analyzer = Analyzer(engines_of(Settings(slow=policy or SlowPolicy())))
        self.now = START
        self.iteration = 0
        self.numbers = 0
        self.emitted: list[Event] = []
        self.wanted: list[SlowOrder] = []

    def receive(self, event: AnyEvent) -> None:
        for _ in range(2):
            self._adopt(self.analyzer.on_event(event, self.now))

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self._adopt(self.analyzer.on_time(self.now, START))

    def ask(self, *, test: bool = False) -> str:
        request = LocateSlowness(id=self.new_id(), asked_by="somebody", job="job", test=test)
        effect = self.analyzer.on_request(request, self.now)
        self._adopt(effect)
        return effect.answer.message

    def _adopt(self, effect: Effect) -> None:
        self.analyzer.adopt(effect)
        self.emitted += [event for event in effect.events if event.type.startswith("fail_slow")]
        self.wanted += [order for order in effect.orders if isinstance(order, SlowOrder)]

    def new_id(self) -> str:
        self.numbers += 1
        return named_id(START, "scene", self.numbers)

    def common(self, node: int, generation: int = 1) -> dict[str, Any]:
        return {
            "id": self.new_id(),
            "at": self.now,
            "source": f"agent/node-{node}",
            "node": f"node-{node}",
            "job": "job",
            "generation": generation,
        }

    def train(self, iterations: int, step_s: Callable[[int], float] | float = STEP_S, *, reported: int = 1) -> None:
        """`reported`: iterations that the collectives of each step seem to have."""
        for _ in range(iterations):
            took_s = step_s(self.iteration) if callable(step_s) else step_s
            # Iterations are never of quite the same length.
            took_s *= 1.0 + 0.01 * (self.iteration * 7 % 5 - 2)
            self.now += timedelta(seconds=took_s)
            for node in range(NODES):
                sample = StepSample(rank=node, step=self.iteration, ended_at=self.now, duration_s=took_s)
                parts = tuple(
                    IterationSample(
                        rank=node,
                        iteration=self.iteration * reported + part,
                        duration_s=took_s if reported == 1 else 0.001,
                        in_calls_s=0.1,
                    )
                    for part in range(reported)
                )
                self.receive(
                    StepsMeasured(
                        **self.common(node),
                        samples=(sample,),
                        iterations=parts,
                        world_size=3,
                    )
                )
            self.iteration += 1

    def tell(self, works_s: tuple[float, ...], transfer_s: float = 0.01, *, nodes: int = NODES) -> None:
        """Every node answers what is wanted: what its rank works, the rest of the longest it waits for the others."""
        longest = max(works_s)
        for node in range(nodes):
            waited = (longest - works_s[node] + transfer_s,) * 4
            calls = ProfiledCalls(
                group="0",
                description="default_pg",
                runs=((0, 3, 1),),
                operation="all_reduce",
                bytes=1 << 20,
                sequences=(10, 11, 12, 13),
                seconds=waited,
                before=(5, 6, 7),
                before_s=(0.01,) * 3,
                count=4,
                total_s=sum(waited),
            )
            rank = RankProfile(
                rank=node,
                step=self.iteration,
                iterations_s=(longest + transfer_s,) * 4,
                in_calls_s=waited,
                healthy_s=STEP_S,
                healthy_work_s=STEP_S - 0.01,
                calls=(calls,),
            )
            self.receive(
                CollectivesProfiled(
                    **self.common(node),
                    asked=self.wanted[-1].id,
                    ranks=(rank,),
                    node_rank=node,
                    nnodes=NODES,
                    nproc_per_node=1,
                    endpoint=Endpoint(address="10.0.0.1", port=1000 + node),
                )
            )

    def hold(
        self,
        compute_s: tuple[float, ...] = (),
        slow_links: tuple[tuple[int, int], ...] = (),
        late: tuple[int, ...] = (),
    ) -> None:
        """Every node holds its rank and measures what is wanted of it; those in `late` could not hold theirs."""
        self._measure(compute_s, (), late)
        if self.wanted[-1].stage == "transfers":
            self._measure((), slow_links)

    def _measure(
        self, compute_s: tuple[float, ...], slow_links: tuple[tuple[int, int], ...], late: tuple[int, ...] = ()
    ) -> None:
        tests = self.wanted[-1].tests
        assert tests is not None
        stage = self.wanted[-1].stage
        for node in range(NODES):
            self.receive(
                SlownessTested(
                    **self.common(node),
                    asked=self.wanted[-1].id,
                    node_rank=node,
                    stage=stage,
                    held=() if node in late else (node,),
                    compute_s=tuple(
                        (rank, compute_s[rank]) for rank in tests.compute_ranks if rank == node and node not in late
                    ),
                    transfers=tuple(
                        (sender, receiver, 0.25 if (sender, receiver) in slow_links else 0.01)
                        for links in tests.passes
                        for sender, receiver in links
                        if sender == node
                    ),
                    held_s=0.7,
                )
            )

    @property
    def located(self) -> FailSlowLocated:
        (found,) = (event for event in self.emitted if isinstance(event, FailSlowLocated))
        return found


def slow_scene(policy: SlowPolicy | None = None) -> Scene:
    scene = Scene(policy)
    scene.train(30)
    assert not scene.emitted
    scene.train(3, 2.0)
    return scene
