"""What three detectors make of telemetry, and that a model is used only once it has passed its test."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest

from holdfast.engines.telemetry import training
from holdfast.engines.telemetry.anomaly_vote import AnomalyVote, vote
from holdfast.engines.telemetry.lof import crowd_of, factors
from holdfast.engines.telemetry.model import DetectorSet, Model, ModelScores, StoredArray, WindowSettings
from holdfast.engines.telemetry.rank_clusters import distances_to_others
from holdfast.engines.telemetry.windows import METRICS, Sample, Window, filled, in_octaves, usual_level, window_of
from holdfast_proving.evidence.usage import history

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = WindowSettings()


@pytest.fixture(scope="module")
def model() -> Model:
    return training.train(history(60), SETTINGS, "v1", NOW, ["job"])


def voted(model: Model, window: Window) -> AnomalyVote:
    return vote(window.ranks, DetectorSet.of(model).score(window), model.thresholds)


def test_windows_that_it_has_not_seen_are_healthy_though_the_job_is_another(model: Model) -> None:
    assert not any(voted(model, window).is_anomaly for window in history(30, seed=7))
    assert not any(voted(model, window).is_anomaly for window in history(5, seed=8, ranks=64))


@pytest.mark.parametrize("name", training.ANOMALIES)
def test_every_made_anomaly_is_found_and_names_one_rank_or_the_job(model: Model, name: str) -> None:
    generator = np.random.default_rng(3)
    for window in history(10, seed=11):
        found = voted(model, training.ANOMALIES[name](window, generator, SETTINGS.length))
        assert found.is_anomaly and len(found.detectors) >= 2
        assert found.is_job == ("job" in name or "network" in name) and len(found.ranks) == (not found.is_job)


def test_a_moment_of_rest_is_no_anomaly(model: Model) -> None:
    window = history(1, seed=5)[0]
    window.values[3, METRICS.index("cpu_cores"), -2] -= 1.0
    assert not voted(model, window).is_anomaly


def test_it_is_the_same_after_a_journey(model: Model) -> None:
    there = msgspec.json.decode(msgspec.json.encode(model), type=Model)
    assert there == model
    with pytest.raises(ValueError, match="reshape"):
        StoredArray(shape=(3, 3), data=b"\0" * 16).values()


def test_of_too_little_nothing_is_learned() -> None:
    with pytest.raises(training.NothingToLearn, match="3 windows of healthy training are recorded, and 20 are needed"):
        training.train(history(3), SETTINGS, "v1", NOW, [])


def test_a_model_that_takes_everything_for_healthy_or_nothing_fails_its_test(model: Model) -> None:
    deaf = msgspec.structs.replace(model, thresholds=training.Thresholds(lof=1e9, profile=1e9, clusters=1e9))
    jumpy = msgspec.structs.replace(model, thresholds=training.Thresholds(lof=0.1, profile=0.0001, clusters=0.0001))
    unseen = history(10, seed=21)
    assert training.why_discarded(training.evaluate(deaf, unseen, [])).startswith("its accuracy is")
    assert training.why_discarded(training.evaluate(jumpy, unseen, []))
    assert not training.why_discarded(training.evaluate(model, unseen, []))


def test_the_scores_are_those_of_a_table_of_confusion() -> None:
    scores = ModelScores(healthy=90, false_alarms=10, injected=8, injected_found=6, recorded=2, recorded_found=2)
    assert (scores.accuracy, scores.precision, scores.recall) == (0.88, 8 / 18, 0.8)
    assert training.why_discarded(ModelScores(healthy=0, false_alarms=0, injected=0, injected_found=0)) != ""


def test_a_rare_healthy_phase_is_no_outlier() -> None:
    generator = np.random.default_rng(0)
    training_phase, checkpoint = generator.normal(0, 0.1, (400, 2)), generator.normal(4, 0.1, (25, 2))
    crowd = crowd_of(np.concatenate([training_phase, checkpoint]), 10)
    found = factors(crowd, np.array([[0.0, 0.0], [4.0, 4.0], [2.0, 2.0]]))
    assert found[0] < 1.3 and found[1] < 1.3 and found[2] > 3


def test_ranks_that_do_the_same_a_little_later_are_alike() -> None:
    beat = np.where(np.arange(40) % 8 < 2, 1.0, 0.0)
    ranks = np.stack([np.roll(beat, shift)[None, :12] for shift in (0, 0, 0, 1, 1, 1)] + [np.full((1, 12), 3.0)])
    far = distances_to_others(ranks, neighbours=2, band=2)
    assert max(far[:6]) < 0.1 and far[6] > 2
    assert not distances_to_others(ranks[:2], 2, 2).any()


def test_a_window_knows_what_it_was_not_told() -> None:
    values = (1.0, 1e9, None, 1e6, 2.0)
    samples = [Sample(rank, slot, values) for rank in (4, 5) for slot in range(10, 20) if (rank, slot) != (5, 12)]
    samples.append(Sample(6, 19, values))
    window = window_of(samples, range(10, 20))
    assert window.ranks == (4, 5, 6) and window.values.shape == (3, len(METRICS), 10)
    # What nobody measures is as usual, a gap is what was before it, and who was hardly heard is left out.
    whole = filled(in_octaves(window, usual_level(window)))
    assert whole.ranks == (4, 5) and not np.isnan(whole.values).any() and not whole.values.any()
