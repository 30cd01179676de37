"""The telemetry of a running job: judged against its own level by a model, and its lines of trouble counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.effects import RowWrite
from holdfast.engines.telemetry import training as learning
from holdfast.engines.telemetry.model import Model, WindowSettings
from holdfast.engines.telemetry.windows import METRICS
from holdfast.events import LogSignature, TelemetryAnomaly, TelemetryMeasured
from holdfast.events.parts.samples import RankTelemetry
from holdfast.fresh_ids import uuid7
from holdfast.requests import KeepModel
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast_analyzer.engines.telemetry.telemetry_engine import MODELS_KEPT, TelemetryEngine
from holdfast_proving.evidence.usage import history, training

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = TelemetryPolicy()


@pytest.fixture(scope="module")
def model() -> Model:
    made = learning.train(history(60), WindowSettings(), "v1", START, ["job"])
    return msgspec.structs.replace(made, scores=learning.evaluate(made, history(8, seed=4), []))


def brought(model: Model) -> KeepModel:
    return KeepModel(id=uuid7(), asked_by="ada", model=msgspec.Raw(msgspec.json.encode(model)))


class Scene:
    """Eight ranks on four nodes, reported slot by slot."""

    def __init__(self, model: Model | None) -> None:
        self.engine = TelemetryEngine(POLICY)
        if model is not None:
            self.keep(model)
        self.values = training(1, ranks=8, slots=200).values
        self.emitted: list[TelemetryAnomaly] = []

    def keep(self, model: Model) -> Any:
        effect = self.engine.answer(brought(model), START)
        self.engine.committed(effect)
        return effect.answer

    def play(self, slots: range, generation: int = 1, interval_s: float = POLICY.every_s) -> list[TelemetryAnomaly]:
        for slot in slots:
            at = START + timedelta(seconds=slot * POLICY.every_s)
            for node in range(4):
                ranks = tuple(
                    RankTelemetry(rank=rank, **dict(zip(METRICS, self.values[rank, :, slot].tolist(), strict=True)))
                    for rank in (2 * node, 2 * node + 1)
                )
                self.engine.take(
                    "job",
                    TelemetryMeasured(
                        id=uuid7(),
                        at=at,
                        source="agent",
                        job="job",
                        generation=generation,
                        node=f"node-{node}",
                        ranks=ranks,
                        interval_s=interval_s,
                    ),
                    at,
                )
            self.look(at + timedelta(seconds=1))
        return self.emitted

    def look(self, now: datetime) -> None:
        effect = self.engine.due(now, START)
        self.engine.committed(effect)
        self.emitted += [event for event in effect.events if isinstance(event, TelemetryAnomaly)]


def test_a_rank_that_stops_is_named_with_its_node_once(model: Model) -> None:
    scene = Scene(model)
    scene.values[5, (0, 4), 100:] = 0.0
    assert scene.play(range(100)) == []
    (found,) = scene.play(range(100, 115))
    assert (found.by, found.ranks, found.nodes, found.version) == ("metrics", (5,), ("node-2",), "v1")
    assert len(found.detectors) >= 2 and len(found.strange) == len(found.detectors) and min(found.strange) > 1
    assert "rank 5 differs from healthy training" in found.reason


def test_a_lasting_anomaly_is_reported_again_after_a_while(model: Model) -> None:
    scene = Scene(model)
    scene.values[5, (0, 4), 60:] = 0.0
    assert len(scene.play(range(60 + int(POLICY.again_after_s / POLICY.every_s)))) == 1
    assert len(scene.play(range(120, 140))) == 2


def test_the_beginning_of_a_generation_is_not_judged(model: Model) -> None:
    scene = Scene(model)
    scene.play(range(60))
    scene.values[:, :, 60 : 60 + POLICY.level_after - 2] = 0.0
    assert scene.play(range(60, 60 + POLICY.level_after - 2), generation=2) == []


def test_without_a_model_or_with_one_of_another_interval_nothing_is_found(model: Model) -> None:
    scene = Scene(None)
    scene.values[5, :, 60:] = 0.0
    assert scene.play(range(80)) == []
    answer = scene.keep(
        msgspec.structs.replace(model, settings=msgspec.structs.replace(model.settings, interval_s=60.0))
    )
    assert not answer.accepted and "train a new one" in answer.message
    other = Scene(model)
    other.values[5, :, 60:] = 0.0
    assert other.play(range(80), interval_s=60.0) == []


def test_only_models_that_passed_their_test_are_stored(model: Model) -> None:
    scene = Scene(None)
    assert model.scores is not None
    bad = msgspec.structs.replace(model.scores, false_alarms=model.scores.healthy)
    for refused, why in (
        (msgspec.structs.replace(model, scores=None), "has not been tested"),
        (msgspec.structs.replace(model, scores=bad), "failed its test"),
        (msgspec.structs.replace(model, format=0), "another version of Holdfast"),
        (msgspec.structs.replace(model, bags=msgspec.structs.replace(model.bags, data=b"")), "this is no model"),
    ):
        answer = scene.keep(refused)
        assert not answer.accepted and why in answer.message
    nothing = KeepModel(id=uuid7(), asked_by="ada", model=msgspec.Raw(b'{"version": 3}'))
    effect = scene.engine.answer(nothing, START)
    assert effect.answer and not effect.answer.accepted and effect.rows == ()
    assert scene.keep(model).accepted and not scene.keep(model).accepted


def test_old_models_go(model: Model) -> None:
    scene = Scene(None)
    for number in range(MODELS_KEPT + 1):
        newer = msgspec.structs.replace(model, version=f"v{number}", made_at=START + timedelta(hours=number))
        effect = scene.engine.answer(brought(newer), START)
        scene.engine.committed(effect)
    gone = [row for row in effect.rows if isinstance(row, RowWrite) and row.row is None]
    assert [row.key for row in gone] == ["v0"]


def test_many_error_lines_name_the_rank_that_printed_the_first() -> None:
    scene = Scene(None)
    for second, node, rank, count in ((5, "node-1", 2, 15), (3, "node-2", 5, 4), (6, "node-3", 6, 5)):
        scene.engine.take(
            "job",
            LogSignature(
                id=uuid7(),
                at=START + timedelta(seconds=second),
                source="agent",
                job="job",
                node=node,
                rank=rank,
                signature="traceback",
                stream="err",
                lines=(f"first of {node}",),
                count=count,
            ),
            START,
        )
    scene.look(START + timedelta(seconds=7))
    (found,) = scene.emitted
    assert (found.by, found.first_node, found.line, found.lines) == ("errors", "node-2", "first of node-2", 24)
    scene.look(START + timedelta(seconds=70))
    assert len(scene.emitted) == 1
