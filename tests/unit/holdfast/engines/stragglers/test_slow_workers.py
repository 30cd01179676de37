"""Slow workers told from heavy data, in durations of passes."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.engines.stragglers.compute_times import PassTimes, parts_of
from holdfast.engines.stragglers.slow_spans import slow_spans
from holdfast.engines.stragglers.traces.operations import Floats, Ints


def made(seconds: Floats, stages: int) -> PassTimes:
    """Passes of (kinds x stages) x dp_ranks x steps x microbatches."""
    rows: Ints = np.arange(0)
    return PassTimes(seconds, np.repeat([0, 1], stages), np.tile(np.arange(stages), 2), rows, rows)


def even(stages: int, dp: int, steps: int, microbatches: int) -> Floats:
    chance = np.random.default_rng(7)
    return np.exp(chance.normal(0, 0.01, (2 * stages, dp, steps, microbatches)))


def slow_workers(seconds: Floats, stages: int, on_one_machine: frozenset[int] = frozenset()) -> set[tuple[int, int]]:
    return {(span.dp_rank, span.stage) for span in parts_of(made(seconds, stages), on_one_machine).spans}


def test_long_sequences_of_one_rank_leave_its_short_ones_as_they_are() -> None:
    data, machine = (even(1, 8, 12, 10) for _ in range(2))
    data[:, 3, 4:9, :7] *= 1.6
    machine[:, 3, [2, 3, 5, 6, 7, 9]] *= 1.6
    assert slow_workers(data, 1) == set()
    assert slow_workers(machine, 1) == {(3, 0)}


@pytest.mark.parametrize("pace", [1.2, 2.0])
def test_a_pipeline_on_one_machine_is_slow_beside_its_peers_though_all_change_from_step_to_step(pace: float) -> None:
    seconds = even(3, 4, 10, 6) * np.linspace(0.97, 1.03, 10)[None, None, :, None]
    seconds[:, 2] *= pace
    assert slow_workers(seconds, 3, frozenset({2})) == {(2, 0), (2, 1), (2, 2)}
    assert slow_workers(seconds, 3) == set()


def test_a_pipeline_on_one_machine_with_long_sequences_is_not_slow() -> None:
    seconds = even(3, 4, 10, 6)
    seconds[:, 2, :, :4] *= 1.5
    assert slow_workers(seconds, 3, frozenset({2})) == set()


def test_rare_heavy_steps_make_no_worker_slow() -> None:
    chance = np.random.default_rng(3)
    beyond = chance.normal(0, 0.005, (1, 16, 20)) + 0.3 * (chance.random((1, 16, 20)) < 0.15)
    beyond[0, 3, 4:7] = 0.3
    assert slow_spans(beyond, 0.005) == []
    beyond[0, 3] = 0.3
    assert [(span.dp_rank, span.is_throughout) for span in slow_spans(beyond, 0.005)] == [(3, True)]
