"""Analysis of a slow job whose collectives name no machine (tests/golden/slow/*.trace).

> 0 job nodes=4 nproc=2 mesh=dp=4,tp=2      # vote_every_s=..., and so on: other settings of [slow]; `shared`: all
                                            # nodes are on one machine
> 1 train iterations=30 s=1.0                # every node reports its iterations of `s` seconds each
> 40 told                                    # every node answers; its collectives have no times
> 41 told record=busy_machine               # the same with recorded answers; `apart`: each node on its own machine
> 42 held record=busy_machine               # recorded tests of all nodes
> 42 stacks 2=forward 3=tp                   # every node answers the round under way; ranks not named wait in `dp`
> 42 stacks 2=forward waited=2:4.5          # rank 2 has waited 4.5 s for a processor up to now
> 60 time                                    # half a second passes, or more
> 60 ask                                     # somebody asks for rounds of stacks; or `ask collectives`
> 70 declined                                # its pace has declined; or `hang`: it makes no progress
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.effects import Effect
from holdfast.events import (
    CollectivesProfiled,
    CollectiveTrace,
    Event,
    FailSlowLocated,
    HangSuspected,
    MfuDeclined,
    SlownessTested,
    StackDump,
    StepsMeasured,
)
from holdfast.events.parts.samples import RankProfile, StepSample
from holdfast.events.parts.traces import Frame, ProcessStacks, ThreadStack
from holdfast.ids import named_id
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.requests import LocateSlowness
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.settings.load import Settings
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from tests.golden.trace import START, Input, play

RECORDS = Path(__file__).parent / "slow/records"
"""Answers of nodes of real clusters."""
TRACES = sorted((Path(__file__).parent / "slow").glob("*.trace"))
PLACES = {
    "dp": (("all_reduce", "torch/distributed/distributed_c10d.py", 2800), ("sync_gradients", "train.py", 50)),
    "tp": (("all_reduce", "torch/distributed/distributed_c10d.py", 2800), ("row_parallel", "layers.py", 9)),
    "forward": (("linear", "layers.py", 5), ("forward", "model.py", 30)),
    "data": (("next_batch", "data.py", 12),),
    "recv": (("irecv", "torch/distributed/distributed_c10d.py", 2350), ("recv_forward", "schedule.py", 7)),
}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, _Scene().step, request.config.getoption("--rewrite"))


class _Record(msgspec.Struct):
    profiled: tuple[CollectivesProfiled, ...]
    tested: tuple[SlownessTested, ...]


class _Scene:
    def __init__(self) -> None:
        self.now = START
        self.iteration = 0
        self.numbers = 0
        self.profile: SlowOrder | None = None
        self.round: TraceOrder | None = None

    def step(self, given: Input) -> list[str]:
        self.now = max(self.now, given.at)
        if given.kind == "job":
            self.nodes, self.nproc = int(given.fields.pop("nodes")), int(given.fields.pop("nproc"))
            self.mesh, self.is_shared = given.fields.pop("mesh"), "shared" in given.words
            self.analyzer = Analyzer(engines_of(Settings(slow=msgspec.convert(given.fields, SlowPolicy, strict=False))))
            return []
        if given.kind == "train":
            return self._train(int(given.fields["iterations"]), float(given.fields["s"]))
        if given.kind == "told":
            return self._recorded(given, "profiled") if "record" in given.fields else self._all(self._profiled)
        if given.kind == "held":
            return self._recorded(given, "tested")
        if given.kind == "stacks":
            waited = given.fields.pop("waited", "")
            self.waited = {int(rank): float(s) for rank, s in (it.split(":") for it in waited.split(",") if it)}
            self.where = {int(rank): place for rank, place in given.fields.items()}
            silent = {int(word.removeprefix("silent-")) for word in given.words}
            nodes = [node for node in range(self.nodes) if node not in silent]
            lines = [line for node in nodes for line in self._hear(self._stacks(node))]
            return lines + [line for node in nodes for line in self._hear(self._collectives(node))]
        if given.kind == "ask":
            request = LocateSlowness(id=given.id, asked_by="ada", job="job", stacks="collectives" not in given.words)
            effect = self.analyzer.on_request(request, self.now)
            return [*self._said(effect), *([f"< refused: {said}"] if (said := effect.answer.message) else [])]
        if given.kind == "declined":
            found = MfuDeclined(**self._common(None), step=50, since_step=20, share_left=0.5, step_s=2.0)
            self.analyzer.adopt(Effect(events=(found,)))
        if given.kind == "hang":
            hang = HangSuspected(
                **self._common(None), trace=given.id, sign="waiting", still_s=5, limit_s=3, phase="train", step=40
            )
            self.analyzer.adopt(Effect(events=(hang,)))
        return self._said(self.analyzer.on_time(self.now, START))

    def _recorded(self, given: Input, what: str) -> list[str]:
        record = msgspec.json.decode((RECORDS / f"{given.fields['record']}.json").read_bytes(), type=_Record)
        lines: list[str] = []
        assert self.profile is not None
        for event in getattr(record, what):
            own = self._common(event.node_rank) | {"asked": self.profile.id}
            if isinstance(event, CollectivesProfiled) and "apart" in given.words:
                own["boot_id"] = own["node"]
            lines += self._hear(msgspec.structs.replace(event, **own))
        return lines

    def _all(self, make: Any) -> list[str]:
        return [line for node in range(self.nodes) for line in self._hear(make(node))]

    def _hear(self, event: Any) -> list[str]:
        return [line for _ in range(2) for line in self._said(self.analyzer.on_event(event, self.now))]

    def _said(self, effect: Effect) -> list[str]:
        self.analyzer.adopt(effect)
        for order in effect.orders:
            if isinstance(order, TraceOrder):
                self.round = order
            elif isinstance(order, SlowOrder) and order.stage == "profile":
                self.profile = order
        told = [line for event in effect.events for line in _told(event)]
        return told + [f"< wanted: {'stacks' if isinstance(it, TraceOrder) else it.stage}" for it in effect.orders]  # type: ignore[union-attr]

    def _train(self, iterations: int, seconds: float) -> list[str]:
        lines: list[str] = []
        for _ in range(iterations):
            # Iterations are never of quite the same length.
            took_s = seconds * (1.0 + 0.01 * (self.iteration * 7 % 5 - 2))
            self.now += timedelta(seconds=took_s)
            lines += self._all(lambda node, took_s=took_s: self._measured(node, took_s))
            self.iteration += 1
        return lines

    def _common(self, node: int | None) -> dict[str, Any]:
        self.numbers += 1
        name = None if node is None else f"node-{node}"
        own_id = named_id(START, "scene", self.numbers)
        return {"id": own_id, "at": self.now, "source": "trace", "node": name, "job": "job", "generation": 1}

    def _measured(self, node: int, took_s: float) -> StepsMeasured:
        sample = StepSample(rank=node * self.nproc, step=self.iteration, ended_at=self.now, duration_s=took_s)
        return StepsMeasured(**self._common(node), samples=(sample,), world_size=self.nodes * self.nproc)

    def _profiled(self, node: int) -> CollectivesProfiled:
        assert self.profile is not None
        return CollectivesProfiled(
            **self._common(node),
            asked=self.profile.id,
            ranks=tuple(RankProfile(rank=rank, step=self.iteration) for rank in self._ranks(node)),
            node_rank=node,
            nnodes=self.nodes,
            nproc_per_node=self.nproc,
            mesh=self.mesh,
            boot_id="one" if self.is_shared else "",
        )

    def _ranks(self, node: int) -> range:
        return range(node * self.nproc, (node + 1) * self.nproc)

    def _stacks(self, node: int) -> StackDump:
        assert self.round is not None
        return StackDump(
            **self._common(node), trace=self.round.id, processes=tuple(map(self._process, self._ranks(node)))
        )

    def _collectives(self, node: int) -> CollectiveTrace:
        assert self.round is not None
        return CollectiveTrace(**self._common(node), trace=self.round.id, ranks=(), origin=self.now)

    def _process(self, rank: int) -> ProcessStacks:
        calls = (*PLACES[self.where.get(rank, "dp")], ("train", "train.py", 90), ("<module>", "train.py", 120))
        frames = tuple(Frame(function=function, file=file, line=line) for function, file, line in calls)
        thread = ThreadStack(frames=frames, is_main=True, name="MainThread")
        return ProcessStacks(
            rank=rank,
            node=f"node-{rank // self.nproc}",
            pid=100 + rank,
            threads=(thread,),
            state="R",
            waited_s=self.waited.get(rank),
        )


def _told(event: Event) -> list[str]:
    if not isinstance(event, FailSlowLocated):
        return [f"< {event.type}"] if event.type.startswith("fail_slow") else []
    said = f"< fail_slow_located {event.slowdown:.2f}: {event.summary}"
    if event.suspects:
        said += f"; suspects {' '.join(event.suspects)}"
    if event.one_of:
        said += f"; one of {' '.join(event.one_of)} ({event.confidence:g})"
    flags = [f"<   flagged {it.times}: {it.kind} {it.ranks} on {' '.join(it.nodes)}" for it in event.flagged]
    return [said, *(f"<   {line}" for line in event.evidence), *flags]
