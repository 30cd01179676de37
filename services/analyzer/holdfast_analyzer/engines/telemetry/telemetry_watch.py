"""Telemetry of one job, compared by a model with healthy training (TRANSOM §IV-B, TEE). Pure.

The job's own level is taken at the beginning of each generation, so that one model serves jobs of any size. A job with
very many ranks is judged in parts, one at a time: its findings come later, and no decision waits for them.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import Any

from holdfast.engines.telemetry.anomaly_vote import AnomalyVote, vote
from holdfast.engines.telemetry.error_window import ErrorLine, ErrorWindow
from holdfast.engines.telemetry.model import DetectorSet, Model
from holdfast.engines.telemetry.windows import (
    METRICS,
    Floats,
    Sample,
    Window,
    filled,
    in_octaves,
    usual_level,
    window_of,
)
from holdfast.events import LogSignature, TelemetryAnomaly, TelemetryMeasured
from holdfast.ids import named_id
from holdfast.settings.findings.telemetry import TelemetryPolicy

SOURCE = "analyzer"
RANKS_AT_ONCE = 1024


class ReadyModel:
    """A model with its detectors, which take time to build."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.detectors = DetectorSet.of(model)


class TelemetryWatch:
    """The newest measurements of one job's ranks, and the error lines that they printed."""

    def __init__(self, job: str, policy: TelemetryPolicy) -> None:
        self.job = job
        self._policy = policy
        self._generation = -1
        self._begun: int | None = None
        self._level: Floats | None = None
        self._samples: deque[Sample] = deque()
        self._nodes: dict[int, str] = {}
        self._looked_at: int | None = None
        self._turn = 0
        self._errors = ErrorWindow(policy.error_window_s, policy.error_lines_max)
        self._emitted_at: dict[str, datetime] = {}

    def take(self, event: TelemetryMeasured) -> None:
        generation = event.generation or 0
        if generation < self._generation or event.interval_s != self._policy.every_s:
            return
        if generation > self._generation:
            self._generation, self._begun, self._level, self._looked_at = generation, None, None, None
            self._samples.clear()
        slot = self._slot(event.at)
        self._begun = slot if self._begun is None else min(self._begun, slot)
        for rank in event.ranks:
            self._nodes[rank.rank] = event.node or ""
            self._samples.append(Sample(rank.rank, slot, tuple(getattr(rank, name) for name in METRICS)))

    def take_line(self, event: LogSignature) -> None:
        line = event.lines[0] if event.lines else ""
        self._errors.take(ErrorLine(event.at, event.node or "", event.rank, event.signature, event.count, line))

    def findings(self, ready: ReadyModel | None, now: datetime) -> tuple[TelemetryAnomaly, ...]:
        """Return the findings to emit; they stay until `committed`."""
        found = [self._errors_found(now), self._metrics_found(ready, now)]
        return tuple(finding for finding in found if finding is not None)

    def committed(self, finding: TelemetryAnomaly) -> None:
        self._emitted_at[finding.by] = finding.at

    def _errors_found(self, now: datetime) -> TelemetryAnomaly | None:
        errors = self._errors.errors(now)
        if errors is None or not self._is_news("errors", now):
            return None
        first = errors.first
        return self._finding(
            now,
            by="errors",
            ranks=(first.rank,),
            nodes=errors.nodes,
            first_node=first.node or None,
            line=first.line,
            lines=errors.times,
            reason=f"{errors.times} error lines within {self._policy.error_window_s:g} s, the first from rank "
            f"{first.rank} on {first.node}",
        )

    def _metrics_found(self, ready: ReadyModel | None, now: datetime) -> TelemetryAnomaly | None:
        # The newest interval may still be on its way from some nodes.
        newest = self._slot(now) - 2
        if ready is None or self._begun is None or newest == self._looked_at:
            return None
        if newest - self._begun < self._policy.level_after:
            return None
        self._looked_at = newest
        if self._level is None:
            first = range(self._begun, self._begun + self._policy.level_after)
            self._level = usual_level(window_of(self._samples, first))
        window = window_of(self._samples, range(newest - self._policy.window + 1, newest + 1))
        while self._samples and self._samples[0].slot < newest - self._policy.window:
            self._samples.popleft()
        if not window.ranks:
            return None
        window = self._turn_of(filled(in_octaves(window, self._level)))
        if not window.ranks:
            return None
        voted = vote(window.ranks, ready.detectors.score(window), ready.model.thresholds)
        if not voted.is_anomaly or not self._is_news("metrics", now):
            return None
        return self._finding(
            now,
            by="metrics",
            ranks=voted.ranks,
            nodes=tuple(sorted({self._nodes[rank] for rank in voted.ranks if self._nodes[rank]})),
            detectors=voted.detectors,
            strange=voted.strange,
            version=ready.model.version,
            reason=_in_words(voted),
        )

    def _turn_of(self, window: Window) -> Window:
        if len(window.ranks) <= RANKS_AT_ONCE:
            return window
        parts = -(-len(window.ranks) // RANKS_AT_ONCE)
        part = slice(self._turn % parts * RANKS_AT_ONCE, (self._turn % parts + 1) * RANKS_AT_ONCE)
        self._turn += 1
        return Window(window.ranks[part], window.slots, window.values[part])

    def _slot(self, at: datetime) -> int:
        return int(at.timestamp() // self._policy.every_s)

    def _is_news(self, by: str, now: datetime) -> bool:
        last = self._emitted_at.get(by)
        return last is None or now - last >= timedelta(seconds=self._policy.again_after_s)

    def _finding(self, now: datetime, **fields: Any) -> TelemetryAnomaly:
        return TelemetryAnomaly(
            id=named_id(now, self.job, "telemetry", fields["by"]),
            at=now,
            source=SOURCE,
            job=self.job,
            generation=max(0, self._generation),
            **fields,
        )


def _in_words(voted: AnomalyVote) -> str:
    subject = "the whole job" if voted.is_job else f"rank {', '.join(map(str, voted.ranks[:8]))}"
    pairs = zip(voted.detectors, voted.strange, strict=True)
    deviations = ", ".join(f"{name} {times:g} times its threshold" for name, times in pairs)
    return f"{subject} differs from healthy training: {deviations}"
