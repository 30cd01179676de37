"""Traces of training jobs that never ran: their pipelines are simulated, operation by operation, and something is slow.

The schedules are 1F1B and, with virtual stages, interleaved 1F1B. A worker issues sends and receives in batches and
waits for each (`overlap=False`), or they run beside its passes (`overlap=True`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FORWARD_S, BACKWARD_S, TRANSFER_S = 0.2, 0.4, 0.001
GROUP_S = {"params-all-gather": 0.1, "grads-reduce-scatter": 0.2, "embedding-grads-all-reduce": 0.03}
HEADER = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc"


@dataclass(kw_only=True)
class Job:
    """A job and what is slow in it. Workers are (dp_rank, stage); `slow` holds the factor of forward and backward."""

    dp: int = 4
    pp: int = 4
    tp: int = 2
    vpp: int = 1
    microbatches: int = 8
    steps: int = 8
    seed: int = 0
    overlap: bool = False
    noise: float = 0.01
    slow: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    slow_steps: range | None = None
    last_stage: tuple[float, float] = (1.0, 1.0)
    stages: dict[int, float] = field(default_factory=dict)
    lengths: float = 0.0
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    groups: dict[int, float] = field(default_factory=dict)
    pauses: float = 0.0
    pause_s: float = 0.3
    paused: tuple[int, int] | None = None
    skew_s: float = 0.0
    lost_rows: float = 0.0

    def trace(self) -> bytes:
        """The trace as CSV, its rows in no particular order."""
        random = np.random.default_rng(self.seed)
        skew_s = random.normal(0, self.skew_s, (self.dp, self.pp)) if self.skew_s else np.zeros((self.dp, self.pp))
        lines = []
        for step in range(self.steps):
            for one in _Step(self, step, random).run():
                if self.lost_rows and random.random() < self.lost_rows:
                    continue
                start_s, took_s = one.start_s + skew_s[one.dp, one.stage], one.end_s - one.start_s
                rank = (one.stage * self.dp + one.dp) * self.tp
                gmc = one.chunk * self.pp + one.stage if one.microbatch >= 0 else -1
                lines.append(
                    f"{one.dp},{one.stage},{rank},{10 + 3 * step},{one.kind},{start_s:.6f},{took_s:.6f},"
                    f"{one.sequence},{one.chunk},{one.microbatch},{gmc}"
                )
        return "\n".join([HEADER, *lines]).encode() + b"\n"


class Done(NamedTuple):
    kind: str
    dp: int
    stage: int
    start_s: float
    end_s: float
    sequence: int
    chunk: int
    microbatch: int


class Pass(NamedTuple):
    kind: str
    chunk: int
    microbatch: int


class Transfers(NamedTuple):
    """Issued together: (forward or backward, send or recv, the receiver's chunk, microbatch)."""

    ends: tuple[tuple[str, str, int, int], ...]


class Post(NamedTuple):
    """Issued, and not waited for."""

    end: tuple[str, str, int, int]


class Wait(NamedTuple):
    """For what was posted earlier."""

    end: tuple[str, str, int, int]


class Together(NamedTuple):
    """A collective, `group` of the workers in it; or something that a worker does alone."""

    kind: str
    group: object
    members: int
    takes_s: float
    chunk: int = -1


Slot = Pass | Transfers | Post | Wait | Together


class _Step:
    def __init__(self, job: Job, step: int, random: np.random.Generator) -> None:
        self.job, self.step, self.random = job, step, random
        shape = (job.dp, job.microbatches)
        work = np.exp(random.normal(0, job.lengths, shape)) if job.lengths else np.ones(shape)
        self.work = 1 + 0.9 * (work - 1)
        self.counts: dict[tuple[int, int, str], int] = {}

    def run(self) -> list[Done]:
        job = self.job
        workers = [(dp, stage) for dp in range(job.dp) for stage in range(job.pp)]
        programs = {worker: list(self.program(*worker)) for worker in workers}
        at, now = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0.0)
        posted: dict[object, dict[str, float]] = {}
        met: dict[object, dict[tuple[int, int], float]] = {}
        takes_s: dict[object, float] = {}
        done: list[Done] = []
        streams = _Streams(self)
        moved = True
        while moved:
            moved = False
            for worker in workers:
                while at[worker] < len(programs[worker]):
                    slot = programs[worker][at[worker]]
                    begin_s = now[worker]
                    end_s = begin_s
                    if isinstance(slot, Post):
                        streams.post(worker, slot.end, begin_s)
                    elif isinstance(slot, Wait):
                        arrives_s = streams.arrives_s(worker, slot.end)
                        if arrives_s is None:
                            break
                        end_s = max(begin_s, arrives_s)
                    elif isinstance(slot, Pass):
                        end_s = begin_s + self.pass_s(worker, slot)
                        done.append(self.record(slot.kind, worker, begin_s, end_s, slot.chunk, slot.microbatch))
                    elif isinstance(slot, Together):
                        key = (slot.kind, slot.group, slot.chunk)
                        met.setdefault(key, {})[worker] = begin_s
                        if len(met[key]) < slot.members:
                            break
                        own_s = takes_s.setdefault(key, slot.takes_s * self.jitter())
                        end_s = max(met[key].values()) + own_s
                        done.append(self.record(slot.kind, worker, begin_s, end_s, slot.chunk, -1))
                    else:
                        ends_s = [self.met_s(worker, end, begin_s, posted, takes_s) for end in slot.ends]
                        if None in ends_s:
                            break
                        end_s = max((one for one in ends_s if one is not None), default=begin_s)
                        for way, side, _, _ in slot.ends:
                            done.append(self.record(f"{way}-{side}", worker, begin_s, end_s, -1, -1))
                    now[worker] = end_s
                    at[worker] += 1
                    moved = True
        streams.settle()
        done += streams.done
        assert all(at[worker] == len(programs[worker]) for worker in workers), "the schedule stands still"
        return done

    def met_s(
        self,
        worker: tuple[int, int],
        end: tuple[str, str, int, int],
        begin_s: float,
        posted: dict[object, dict[str, float]],
        takes_s: dict[object, float],
    ) -> float | None:
        """When a transfer ends; None as long as its other side has not come."""
        way, side, chunk, microbatch = end
        dp, stage = worker
        ahead = 1 if (way == "forward") == (side == "send") else -1
        link = (dp, stage if ahead == 1 else (stage - 1) % self.job.pp)
        key = (way, dp, link, chunk, microbatch)
        sides = posted.setdefault(key, {})
        sides.setdefault(side, begin_s)
        if len(sides) < 2:
            return None
        own_s = takes_s.setdefault(key, TRANSFER_S * self.job.links.get(link, 1.0) * self.jitter())
        return max(sides.values()) + own_s

    def record(
        self, kind: str, worker: tuple[int, int], start_s: float, end_s: float, chunk: int, microbatch: int
    ) -> Done:
        sequence = self.counts.get((*worker, kind), 0)
        self.counts[(*worker, kind)] = sequence + 1
        return Done(kind, *worker, start_s, end_s, sequence, chunk, microbatch)

    def jitter(self) -> float:
        return float(np.exp(self.random.normal(0, 0.03)))

    def pass_s(self, worker: tuple[int, int], one: Pass) -> float:
        job, (dp, stage) = self.job, worker
        backward = one.kind == "backward-compute"
        took_s = (BACKWARD_S if backward else FORWARD_S) / job.vpp * self.work[dp, one.microbatch]
        if stage == job.pp - 1 and one.chunk == job.vpp - 1:
            took_s += (job.last_stage[backward] - 1) * (BACKWARD_S if backward else FORWARD_S)
        took_s *= job.stages.get(stage, 1.0)
        if job.slow_steps is None or self.step in job.slow_steps:
            took_s *= job.slow.get(worker, (1.0, 1.0))[backward]
        took_s *= float(np.exp(self.random.normal(0, job.noise)))
        if (not backward or job.paused) and job.paused in (None, worker) and self.random.random() < job.pauses:
            took_s += job.pause_s * self.random.uniform(0.7, 1.3)
        return took_s

    def program(self, dp: int, stage: int) -> Iterator[Slot]:
        job = self.job
        for chunk in range(job.vpp):
            yield self.of_stage("params-all-gather", stage, chunk)
        slots = list(self.one_f_one_b(stage) if job.vpp == 1 else self.interleaved(stage))
        yield from _beside(slots) if job.overlap else slots
        yield Together("gc", (dp, stage), 1, 0.0)
        yield Together("layernorm-grads-all-reduce", (dp, stage), 1, 0.003)
        if stage in (0, job.pp - 1) and job.pp > 1:
            yield Together("embedding-grads-all-reduce", dp, 2, GROUP_S["embedding-grads-all-reduce"])
        for chunk in range(job.vpp):
            yield self.of_stage("grads-reduce-scatter", stage, chunk)
        yield Together("optimizer-clip-main-grad", 0, job.dp * job.pp, 0.01)
        yield Together("optimizer", (dp, stage), 1, 0.02 * job.slow.get((dp, stage), (1.0, 1.0))[0])

    def of_stage(self, kind: str, stage: int, chunk: int) -> Together:
        job = self.job
        embeds = 2.0 if stage == 0 and chunk == 0 else 1.0
        takes_s = GROUP_S[kind] / job.vpp * embeds * job.groups.get(stage, 1.0)
        return Together(kind, stage, job.dp, takes_s, chunk)

    def one_f_one_b(self, stage: int) -> Iterator[Slot]:
        job, last = self.job, stage == self.job.pp - 1
        ahead = min(job.pp - 1 - stage, job.microbatches)
        receives = [("forward", "recv", 0, one) for one in range(job.microbatches)] if stage else []
        sends = [] if last else [("forward", "send", 0, one) for one in range(job.microbatches)]
        receives_back = [] if last else [("backward", "recv", 0, one) for one in range(job.microbatches)]
        sends_back = [("backward", "send", 0, one) for one in range(job.microbatches)] if stage else []

        def together(*ends: list[tuple[str, str, int, int]]) -> Iterator[Slot]:
            if found := tuple(end for one in ends for end in one):
                yield Transfers(found)

        for one in range(ahead):
            yield from together(receives[one : one + 1])
            yield Pass("forward-compute", 0, one)
            yield from together(sends[one : one + 1])
        yield from together(receives[ahead : ahead + 1])
        for one in range(ahead, job.microbatches):
            back = one - ahead
            yield Pass("forward-compute", 0, one)
            yield from together(sends[one : one + 1], receives_back[back : back + 1])
            yield Pass("backward-compute", 0, back)
            yield from together(sends_back[back : back + 1], receives[one + 1 : one + 2])
        for back in range(job.microbatches - ahead, job.microbatches):
            yield from together(receives_back[back : back + 1])
            yield Pass("backward-compute", 0, back)
            yield from together(sends_back[back : back + 1])

    def interleaved(self, stage: int) -> Iterator[Slot]:
        """As in Megatron: groups of as many microbatches as there are stages, chunk after chunk."""
        job = self.job
        total = job.microbatches * job.vpp
        ahead = min((job.pp - stage - 1) * 2 + (job.vpp - 1) * job.pp, total)
        span = job.pp * job.vpp

        def forward(number: int) -> tuple[int, int]:
            return number % span // job.pp, number // span * job.pp + number % job.pp

        def backward(number: int) -> tuple[int, int]:
            chunk, microbatch = forward(number)
            return job.vpp - 1 - chunk, microbatch

        def receive(number: int) -> list[tuple[str, str, int, int]]:
            if number >= total:
                return []
            chunk, microbatch = forward(number)
            return [] if stage == 0 and chunk == 0 else [("forward", "recv", chunk, microbatch)]

        def send(number: int) -> list[tuple[str, str, int, int]]:
            chunk, microbatch = forward(number)
            if stage == job.pp - 1:
                return [] if chunk == job.vpp - 1 else [("forward", "send", chunk + 1, microbatch)]
            return [("forward", "send", chunk, microbatch)]

        def receive_back(number: int) -> list[tuple[str, str, int, int]]:
            if number >= total:
                return []
            chunk, microbatch = backward(number)
            if stage == job.pp - 1 and chunk == job.vpp - 1:
                return []
            return [("backward", "recv", chunk, microbatch)]

        def send_back(number: int) -> list[tuple[str, str, int, int]]:
            chunk, microbatch = backward(number)
            if stage == 0:
                return [] if chunk == 0 else [("backward", "send", chunk - 1, microbatch)]
            return [("backward", "send", chunk, microbatch)]

        def together(*ends: list[tuple[str, str, int, int]]) -> Iterator[Slot]:
            if found := tuple(end for one in ends for end in one):
                yield Transfers(found)

        yield from together(receive(0))
        for number in range(ahead):
            yield Pass("forward-compute", *forward(number))
            back = receive_back(0) if number == ahead - 1 and ahead < total else []
            yield from together(send(number), receive(number + 1), back)
        for number in range(total - ahead):
            yield Pass("forward-compute", *forward(number + ahead))
            yield Pass("backward-compute", *backward(number))
            last = number == total - ahead - 1
            following = [] if last else receive(number + ahead + 1)
            yield from together(send(number + ahead), send_back(number), following, receive_back(number + 1))
        if ahead == total:
            yield from together(receive_back(0))
        for number in range(total - ahead, total):
            yield Pass("backward-compute", *backward(number))
            yield from together(send_back(number), receive_back(number + 1))


def _beside(slots: list[Slot]) -> Iterator[Slot]:
    """The same schedule with transfers beside passes: what is needed next is asked for one pass early."""
    asked: set[tuple[str, str, int, int]] = set()
    for place, slot in enumerate(slots):
        if isinstance(slot, Transfers):
            yield from (Post(end) for end in slot.ends if end not in asked)
            asked.update(slot.ends)
            continue
        assert isinstance(slot, Pass)
        following = slots[place + 1] if place + 1 < len(slots) else None
        if isinstance(following, Transfers):
            early = [end for end in following.ends if end[1] == "recv" and end not in asked]
            yield from (Post(end) for end in early)
            asked.update(early)
        wanted = (slot.kind.removesuffix("-compute"), "recv", slot.chunk, slot.microbatch)
        if wanted in asked:
            yield Wait(wanted)
        yield slot


class _Streams:
    """Transfers beside passes: of each worker and kind one after another, in the order in which they were issued."""

    def __init__(self, step: _Step) -> None:
        self.step = step
        self.done: list[Done] = []
        self.posted: dict[object, dict[str, tuple[tuple[int, int], float]]] = {}
        self.queues: dict[tuple[tuple[int, int], str], list[object]] = {}
        self.ends_s: dict[object, float] = {}
        self.free_s: dict[tuple[tuple[int, int], str], float] = {}

    def key(self, worker: tuple[int, int], end: tuple[str, str, int, int]) -> tuple[object, ...]:
        way, side, chunk, microbatch = end
        ahead = 1 if (way == "forward") == (side == "send") else -1
        return way, (worker[0], worker[1] if ahead == 1 else (worker[1] - 1) % self.step.job.pp), chunk, microbatch

    def post(self, worker: tuple[int, int], end: tuple[str, str, int, int], at_s: float) -> None:
        key = self.key(worker, end)
        self.posted.setdefault(key, {})[end[1]] = (worker, at_s)
        self.queues.setdefault((worker, f"{end[0]}-{end[1]}"), []).append(key)

    def arrives_s(self, worker: tuple[int, int], end: tuple[str, str, int, int]) -> float | None:
        self.settle()
        return self.ends_s.get(self.key(worker, end))

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for queue in self.queues.values():
                moved |= bool(queue) and self.settled(queue[0])

    def settled(self, key: object) -> bool:
        """Whether a transfer can take place: both sides have issued it, and have done what they issued before."""
        sides = self.posted[key]
        assert isinstance(key, tuple)
        ends = [(worker, f"{key[0]}-{side}", at_s) for side, (worker, at_s) in sides.items()]
        if len(ends) < 2 or any(self.queues[worker, kind][0] != key for worker, kind, _ in ends):
            return False
        starts_s = [max(at_s, self.free_s.get((worker, kind), 0.0)) for worker, kind, at_s in ends]
        end_s = max(starts_s) + TRANSFER_S * self.step.job.links.get(key[1], 1.0) * self.step.jitter()
        self.ends_s[key] = end_s
        for (worker, kind, _), start_s in zip(ends, starts_s, strict=True):
            self.queues[worker, kind].pop(0)
            self.free_s[worker, kind] = end_s
            self.done.append(self.step.record(kind, worker, start_s, end_s, -1, -1))
        return True
