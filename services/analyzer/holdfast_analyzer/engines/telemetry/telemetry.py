"""The telemetry of all jobs, and the model that it is judged by (TRANSOM §IV-B)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
import structlog

from holdfast.effects import Effect, RowWrite
from holdfast.engines.telemetry.model import FORMAT, Model, Settings
from holdfast.engines.telemetry.training import why_discarded
from holdfast.engines.telemetry.windows import METRICS
from holdfast.events import LogSignature, TelemetryAnomaly, TelemetryMeasured
from holdfast.requests import Answer, KeepModel
from holdfast.settings.telemetry import TelemetryPolicy
from holdfast_analyzer.engines.telemetry.telemetry_watch import ReadyModel, TelemetryWatch
from holdfast_analyzer.store import MODELS

MODELS_KEPT = 5

log = structlog.get_logger()


class Telemetries:
    """What is known of each job's telemetry, and the models: the newest that fits the settings is used."""

    def __init__(self, policy: TelemetryPolicy) -> None:
        self._policy = policy
        self._jobs: dict[str, TelemetryWatch] = {}
        self._models: dict[str, Model] = {}
        self._ready: ReadyModel | None = None

    def load(self, models: Mapping[str, Model]) -> None:
        """The models as they are stored."""
        self._models = dict(models)
        self._choose()

    def take(self, job: str, event: TelemetryMeasured | LogSignature) -> None:
        """What ranks of a job used, or printed."""
        watch = self._jobs.setdefault(job, TelemetryWatch(job, self._policy))
        if isinstance(event, TelemetryMeasured):
            watch.take(event)
        else:
            watch.take_line(event)

    def forget(self, job: str) -> None:
        """The job is over."""
        self._jobs.pop(job, None)

    def findings(self, now: datetime) -> tuple[TelemetryAnomaly, ...]:
        """What is to be said of any job now."""
        return tuple(finding for watch in self._jobs.values() for finding in watch.findings(self._ready, now))

    def said(self, finding: TelemetryAnomaly) -> None:
        """This was said."""
        if finding.job in self._jobs:
            self._jobs[finding.job].said(finding)

    def keep(self, request: KeepModel) -> Effect:
        """Somebody brings a model: it is used if it can be, and has passed its test."""
        try:
            model = msgspec.json.decode(request.model, type=Model)
            ReadyModel(model)
        except (msgspec.DecodeError, ValueError) as error:
            return _refused(f"this is no model: {error}")
        if why := self._why_not(model):
            return _refused(why)
        if model.version in self._models:
            return _refused(f"version {model.version} is here already")
        rows = [RowWrite(table=MODELS, key=model.version, row=model)]
        oldest_first = sorted(self._models.values(), key=lambda known: known.made_at)
        rows += [RowWrite(table=MODELS, key=old.version, row=None) for old in oldest_first[: 1 - MODELS_KEPT]]
        return Effect(rows=tuple(rows), answer=Answer(accepted=True, message=f"version {model.version} is in use"))

    def adopt(self, row: RowWrite) -> None:
        """A model was stored, or went."""
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


def settings_of(policy: TelemetryPolicy) -> Settings:
    """What a model must have been trained with."""
    return Settings(interval_s=policy.every_s, window=policy.window, length=policy.length)


def _refused(why: str) -> Effect:
    return Effect(answer=Answer(accepted=False, message=why))
