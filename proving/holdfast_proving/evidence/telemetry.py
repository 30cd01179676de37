"""Resources that ranks use, as agents measure them beside training, and the drift of a machine that leaks memory.

Agents measure every few seconds. Here nothing is published until a machine drifts: then the first measurements of the
run, which its usual level follows from, and the last before the drift, and from then on each one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial

import msgspec

from holdfast.engines.telemetry.model import Model, WindowSettings
from holdfast.engines.telemetry.training import evaluate, train
from holdfast.engines.telemetry.windows import METRICS, Floats
from holdfast.events import Event, TelemetryMeasured
from holdfast.events.parts.samples import RankTelemetry
from holdfast.ids import named_id
from holdfast.requests import KeepModel
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast_proving.evidence import usage
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.agenda import EPOCH, Agenda, moment_of
from holdfast_proving.world.training import Run, Training

WINDOWS = 60
DOUBLES_IN = 12
"""Measurements in which the memory of a leaking rank doubles."""
FOLLOWED = 60
"""Measurements after the beginning of a drift."""
_MEMORY = METRICS.index("memory_bytes")


class TelemetryReports:
    def __init__(self, agenda: Agenda, policy: TelemetryPolicy, publish: Callable[[Event], None]) -> None:
        self._agenda = agenda
        self._policy = policy
        self._publish = publish

    def drift(self, training: Training, run: Run, fault: Fault, machine: str) -> None:
        """Have the ranks of a machine leak memory from now on."""
        plan = training.plan
        assert run.began_s is not None
        first, now = self._slot(run.began_s) + 1, self._slot(self._agenda.seconds)
        slots = range(max(first, now - self._policy.window), now + FOLLOWED)
        ranks = plan.nodes * plan.ranks_per_node
        level = range(first, min(slots.start, first + self._policy.level_after))
        seed = fault.stream("usage").getrandbits(16)
        for part in (level, slots):
            if not part:
                continue
            values = usage.training(seed, max(2, ranks), len(part), part.start - first).values
            own = run.up[machine] * plan.ranks_per_node
            for number, slot in enumerate(part):
                values[own : own + plan.ranks_per_node, _MEMORY, number] *= 2.0 ** (max(0, slot - now) / DOUBLES_IN)
                report = partial(self._report, training, run, slot, values[:, :, number])
                self._agenda.at((slot + 1) * self._policy.every_s, report)

    def _slot(self, seconds: float) -> int:
        return int(seconds // self._policy.every_s)

    def _report(self, training: Training, run: Run, slot: int, values: Floats) -> None:
        plan = training.plan
        if not run.is_stepping:
            return
        # Measured in the middle of its interval, published now.
        at = moment_of((slot + 0.5) * self._policy.every_s)
        for node, node_rank in run.up.items():
            first = node_rank * plan.ranks_per_node
            self._publish(
                TelemetryMeasured(
                    id=named_id(at, node, run.job, run.generation, "telemetry", slot),
                    at=at,
                    source=f"agent/{node}",
                    node=node,
                    job=run.job,
                    generation=run.generation,
                    ranks=tuple(
                        _usage_of(rank, values[rank].tolist()) for rank in range(first, first + plan.ranks_per_node)
                    ),
                    interval_s=self._policy.every_s,
                )
            )


def _usage_of(rank: int, values: list[float]) -> RankTelemetry:
    named = dict(zip(METRICS, values, strict=True))
    return RankTelemetry(rank=rank, **{**named, "memory_bytes": round(named["memory_bytes"])})  # type: ignore[arg-type]


def model_request(at: datetime, policy: TelemetryPolicy) -> KeepModel:
    """Return the request by which the historian hands over a model of healthy telemetry."""
    model = _model(policy.every_s, policy.window, policy.length)
    return KeepModel(id=named_id(at, "model"), asked_by="historian", model=msgspec.Raw(msgspec.json.encode(model)))


@lru_cache(maxsize=4)
def _model(every_s: float, window: int, length: int) -> Model:
    settings = WindowSettings(interval_s=every_s, window=window, length=length)
    made = train(usage.history(WINDOWS), settings, "proving", EPOCH, ["train"])
    return msgspec.structs.replace(made, scores=evaluate(made, usage.history(8, seed=4), []))
