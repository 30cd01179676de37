"""The telemetry of all jobs, and the model that it is judged by (TRANSOM §IV-B)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import structlog

from holdfast.effects import Effect, RowWrite
from holdfast.engines.telemetry.model import FORMAT, Model, WindowSettings
from holdfast.engines.telemetry.training import why_discarded
from holdfast.engines.telemetry.windows import METRICS
from holdfast.events import AnyEvent, LogSignature, TelemetryAnomaly, TelemetryMeasured
from holdfast.requests import Answer, AnyRequest, KeepModel
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.store import Table
from holdfast_analyzer.engines.engine import Engine
from holdfast_analyzer.engines.telemetry.telemetry_watch import ReadyModel, TelemetryWatch

MODELS_KEPT = 5

log = structlog.get_logger()


def _columns(model: Model) -> dict[str, Any]:
    scores = model.scores
    return {
        "made_at": model.made_at,
        "windows": model.windows,
        "accuracy": scores.accuracy if scores else None,
        "precision": scores.precision if scores else None,
        "recall": scores.recall if scores else None,
    }


MODELS = Table(name="telemetry_models", row_type=Model, columns=_columns)


class TelemetryEngine(Engine):
    """The telemetry of all jobs, and the models: the newest that fits the settings is used."""

    events = (TelemetryMeasured, LogSignature)
    requests = (KeepModel,)
    tables = (MODELS,)

    def __init__(self, policy: TelemetryPolicy) -> None:
        self._policy = policy
        self._jobs: dict[str, TelemetryWatch] = {}
        self._models: dict[str, Model] = {}
        self._ready: ReadyModel | None = None

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._models = dict(rows[MODELS.name])
        self._choose()

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        watch = self._jobs.setdefault(job, TelemetryWatch(job, self._policy))
        if isinstance(event, TelemetryMeasured):
            watch.take(event)
        elif isinstance(event, LogSignature):
            watch.take_line(event)
        return Effect()

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        findings = (finding for watch in self._jobs.values() for finding in watch.findings(self._ready, now))
        return Effect(events=tuple(findings))

    def committed(self, effect: Effect) -> None:
        for row in effect.rows:
            if row.table is MODELS:
                self._adopt(row)
        for event in effect.events:
            if isinstance(event, TelemetryAnomaly) and event.job in self._jobs:
                self._jobs[event.job].committed(event)

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        return ()

    def answer(self, request: AnyRequest, now: datetime) -> Effect:
        """Keep the model of a request if it fits the settings and has passed its test."""
        assert isinstance(request, KeepModel)
        try:
            model = msgspec.json.decode(request.model, type=Model)
            ReadyModel(model)
        except (msgspec.DecodeError, ValueError) as error:
            return _refused(f"this is no model: {error}")
        if why := self._why_not(model):
            return _refused(why)
        if model.version in self._models:
            return _refused(f"version {model.version} is stored already")
        rows = [RowWrite(table=MODELS, key=model.version, row=model)]
        oldest_first = sorted(self._models.values(), key=lambda known: known.made_at)
        rows += [RowWrite(table=MODELS, key=old.version, row=None) for old in oldest_first[: 1 - MODELS_KEPT]]
        return Effect(rows=tuple(rows), answer=Answer(accepted=True, message=f"version {model.version} is in use"))

    def _adopt(self, row: RowWrite) -> None:
        if isinstance(row.row, Model):
            self._models[row.key] = row.row
        else:
            self._models.pop(row.key, None)
        self._choose()

    def _why_not(self, model: Model) -> str:
        if model.format != FORMAT or model.metrics != METRICS:
            return f"version {model.version} was made by another version of Holdfast: train a new one"
        if model.scores is None:
            return f"version {model.version} has not been tested"
        if why := why_discarded(model.scores):
            return f"version {model.version} failed its test: {why}"
        wanted = settings_of(self._policy)
        used = (model.settings.interval_s, model.settings.window, model.settings.length)
        if used != (wanted.interval_s, wanted.window, wanted.length):
            return (
                f"version {model.version} is for every_s, window, length = {used}, and [telemetry] has "
                f"{(wanted.interval_s, wanted.window, wanted.length)}: train a new one"
            )
        return ""

    def _choose(self) -> None:
        usable = [model for model in self._models.values() if not self._why_not(model)]
        newest = max(usable, key=lambda model: model.made_at, default=None)
        self._ready = ReadyModel(newest) if newest else None
        if newest is None and self._models:
            log.warning("no model of telemetry fits the settings", models=len(self._models))


def settings_of(policy: TelemetryPolicy) -> WindowSettings:
    """Return the settings that a model must have been trained with."""
    return WindowSettings(interval_s=policy.every_s, window=policy.window, length=policy.length)


def _refused(why: str) -> Effect:
    return Effect(answer=Answer(accepted=False, message=why))
