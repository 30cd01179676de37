"""Throughput of a job: seconds a step, tokens a second, MFU, and a lasting decline of these. Pure; in memory.

ByteRobust §4.1: a significant decline of MFU is a symptom by itself. It is judged by the medians of blocks of many
steps, so single long steps (checkpoints, evaluation) do not count; a generation's first steps are left out. The level
is that of the job's healthy blocks over all its generations: a restart that made the job slow is a decline too. Two
declined blocks in a row are one finding, and the new pace becomes the level.
"""

from __future__ import annotations

import statistics
from collections import deque
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, MfuDeclined, NumbersLogged, StepsMeasured, ThroughputMeasured
from holdfast.ids import derived_id
from holdfast.settings.signals import SignalsPolicy
from holdfast.symptoms import Symptom
from holdfast_analyzer.engines.engine import Engine

SOURCE = "analyzer"
WINDOW = 64
"""Newest steps whose median is the pace."""
FIRST_AFTER = 5
"""Number of steps after which the first pace is emitted."""
EMIT_EVERY = timedelta(seconds=10)
"""Shortest interval of `throughput_measured`."""
EMIT_ANYWAY = timedelta(minutes=1)
"""Interval at which it is emitted though the pace has not changed."""
MOVED_BY = 0.02
"""Share by which the step time must change to be emitted before that."""
BLOCKS_MAX = 20
"""Newest healthy blocks whose median is the level."""
BLOCKS_MIN = 3
"""Number of healthy blocks that make a level."""
DECLINED_BLOCKS = 2
"""Number of declined blocks in a row that are a finding."""
LOGGED_READINGS = 5
"""Newest values of a training log whose median counts."""


class _Pace(msgspec.Struct, frozen=True):
    step: int
    step_s: float
    tokens: int | None


class JobThroughput:
    """The pace of one job. A repeated event changes nothing; findings stay until committed."""

    def __init__(self, job: str, policy: SignalsPolicy) -> None:
        self.job = job
        self._policy = policy
        self._generation = 0
        self._newest: int | None = None
        self._warm_up = 0
        self._world_size = 0
        self._flops_per_token: float | None = None
        self._peak_flops: float | None = None
        self._window: deque[_Pace] = deque(maxlen=WINDOW)
        self._logged: dict[str, deque[float]] = {}
        self._block: list[_Pace] = []
        self._healthy: deque[float] = deque(maxlen=BLOCKS_MAX)
        self._declined: list[tuple[int, float]] = []
        self._decline: dict[str, Any] | None = None
        self._last: ThroughputMeasured | None = None

    def take(self, event: StepsMeasured) -> None:
        """Take in the samples of one node. A step counts once, from any rank."""
        generation = event.generation or 0
        if generation < self._generation:
            return
        if generation > self._generation:
            self._begin(generation)
        self._world_size = event.world_size or self._world_size
        self._flops_per_token = event.flops_per_token or self._flops_per_token
        self._peak_flops = self._policy.peak_flops or event.peak_flops or self._peak_flops
        for sample in sorted(event.samples, key=lambda sample: sample.step):
            if self._newest is not None and sample.step <= self._newest:
                continue
            self._newest = sample.step
            if self._warm_up:
                self._warm_up -= 1
            elif sample.duration_s > 0:
                self._count(_Pace(sample.step, sample.duration_s, sample.tokens or None))

    def take_logged(self, event: NumbersLogged) -> None:
        if event.generation == self._generation:
            for sample in event.samples:
                for name, value in (("tokens_per_s", sample.tokens_per_s), ("mfu", sample.mfu)):
                    if value is not None and value > 0:
                        self._logged.setdefault(name, deque(maxlen=LOGGED_READINGS)).append(value)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._newest = None
        self._warm_up = self._policy.decline_warm_up_steps
        self._window.clear()
        self._logged.clear()
        self._block.clear()
        self._declined.clear()

    def _count(self, pace: _Pace) -> None:
        self._window.append(pace)
        self._block.append(pace)
        if len(self._block) < self._policy.decline_steps:
            return
        block, self._block = self._block, []
        cost = statistics.median(_cost(pace) for pace in block)
        level = statistics.median(self._healthy) if len(self._healthy) >= BLOCKS_MIN else None
        if level is None or cost * self._policy.decline_ratio < level:
            self._healthy.append(cost)
            self._declined.clear()
            return
        self._declined.append((block[0].step, cost))
        if len(self._declined) == DECLINED_BLOCKS:
            self._decline = {
                "step": block[-1].step,
                "since_step": self._declined[0][0],
                "share_left": level / cost,
                "step_s": statistics.median(pace.step_s for pace in block),
            }
            self._healthy.clear()
            self._healthy.extend([cost] * BLOCKS_MIN)
            self._declined.clear()

    def findings(self, cause: str, now: datetime) -> tuple[ThroughputMeasured | MfuDeclined, ...]:
        last = self._last
        if (
            last is not None
            and last.generation == self._generation
            and now - last.at < EMIT_EVERY
            and not self._decline
        ):
            return ()
        common: dict[str, Any] = {
            "at": now,
            "source": SOURCE,
            "job": self.job,
            "generation": self._generation,
            "cause": cause,
        }
        found: list[ThroughputMeasured | MfuDeclined] = []
        tokens_per_s, mfu, is_logged = self._rates()
        if self._decline is not None:
            found.append(
                MfuDeclined(
                    **common,
                    **self._decline,
                    id=derived_id(cause, "mfu declined"),
                    symptom=Symptom.MFU_DECLINE,
                    tokens_per_s=tokens_per_s,
                    mfu=mfu,
                )
            )
        if len(self._window) >= FIRST_AFTER:
            measured = ThroughputMeasured(
                **common,
                id=derived_id(cause, "throughput"),
                step=self._window[-1].step,
                step_s=statistics.median(pace.step_s for pace in self._window),
                tokens_per_s=tokens_per_s,
                mfu=mfu,
                is_logged=is_logged,
            )
            if self._is_news(measured):
                found.append(measured)
        return tuple(found)

    def committed(self, finding: ThroughputMeasured | MfuDeclined) -> None:
        if isinstance(finding, ThroughputMeasured):
            self._last = finding
        else:
            self._decline = None

    def _is_news(self, measured: ThroughputMeasured) -> bool:
        last = self._last
        if last is None or last.generation != measured.generation:
            return True
        moved = abs(measured.step_s - last.step_s) > MOVED_BY * last.step_s
        learned = (measured.tokens_per_s is None, measured.mfu is None) != (last.tokens_per_s is None, last.mfu is None)
        since = measured.at - last.at
        return since >= EMIT_ANYWAY or (since >= EMIT_EVERY and (moved or learned))

    def _rates(self) -> tuple[float | None, float | None, bool]:
        """Return tokens a second, MFU, and True if they come from a training log: the library takes precedence."""
        rates = [pace.tokens / pace.step_s for pace in self._window if pace.tokens]
        if not rates:
            logged = {name: statistics.median(values) for name, values in self._logged.items()}
            return logged.get("tokens_per_s"), logged.get("mfu"), bool(logged)
        tokens_per_s = statistics.median(rates)
        if self._flops_per_token and self._peak_flops and self._world_size:
            return tokens_per_s, tokens_per_s * self._flops_per_token / (self._peak_flops * self._world_size), False
        logged_mfu = self._logged.get("mfu")
        return tokens_per_s, statistics.median(logged_mfu) if logged_mfu else None, False


class ThroughputEngine(Engine):
    events = (StepsMeasured, NumbersLogged)

    def __init__(self, policy: SignalsPolicy) -> None:
        self._policy = policy
        self._jobs: dict[str, JobThroughput] = {}

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        if job not in self._jobs:
            self._jobs[job] = JobThroughput(job, self._policy)
        throughput = self._jobs[job]
        if isinstance(event, StepsMeasured):
            throughput.take(event)
        elif isinstance(event, NumbersLogged):
            throughput.take_logged(event)
        return Effect(events=throughput.findings(event.id, now))

    def committed(self, effect: Effect) -> None:
        for event in effect.events:
            if isinstance(event, ThroughputMeasured | MfuDeclined) and event.job in self._jobs:
                self._jobs[event.job].committed(event)

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        return ()


def _cost(pace: _Pace) -> float:
    """Return seconds a token, as batches may grow; seconds a step if tokens are not reported."""
    return pace.step_s / pace.tokens if pace.tokens else pace.step_s
