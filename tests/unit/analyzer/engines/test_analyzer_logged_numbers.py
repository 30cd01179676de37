"""Numbers from training logs: they find faults, certify what they can, and never speak against the library's word."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from holdfast import events
from holdfast.events import NumbersLogged
from holdfast.events.parts.samples import LoggedSample
from holdfast.ids import named_id
from holdfast_analyzer.engines.bad_numbers.logged_steps import SILENT
from tests.scenes.analyzer import START, Number, Ranks, Scene

AFTER = 10
JUMP = 5.5


class Logs:
    """What two ranks on two nodes write into logs; JSON lies between them and the analyzer."""

    def __init__(self) -> None:
        self.emitted: dict[tuple[int, int], int] = {}
        self.number = 10_000

    def logged(
        self,
        steps: Iterable[int],
        loss: Callable[[int], Number] = lambda step: 1.0,
        norm: Callable[[int], Number] = lambda step: None,
        *,
        rank: int = 0,
        generation: int = 1,
        late: timedelta = timedelta(0),
    ) -> NumbersLogged:
        samples = tuple(_sample(rank, step, loss(step), norm(step), late) for step in steps)
        before = self.emitted.get((rank, generation), 0)
        self.emitted[rank, generation] = before + len(samples)
        self.number += 1
        event = NumbersLogged(
            id=named_id(START, self.number),
            at=START,
            source="agent/a",
            node="ab"[rank],
            job="job",
            generation=generation,
            samples=samples,
            kind="tensorboard",
            path="/logs/events",
            tags={"loss": "train/loss", "grad_norm": "train/grad_norm"},
            before=before,
        )
        decoded = events.decode(events.encode(event))
        assert isinstance(decoded, NumbersLogged)
        return decoded


def _sample(rank: int, step: int, loss: Number, norm: Number, late: timedelta) -> LoggedSample:
    read = {"loss": loss, "grad_norm": norm}
    not_finite = {name: str(value) for name, value in read.items() if value is not None and not math.isfinite(value)}
    finite = {name: None if name in not_finite else value for name, value in read.items()}
    at = START + timedelta(seconds=step) + late
    return LoggedSample(rank=rank, step=step, logged_step=7 * step, logged_at=at, not_finite=not_finite, **finite)


def silent(ranks: Ranks, steps: Iterable[int], generation: int = 1) -> list[events.StepsMeasured]:
    """Both ranks make these steps and tell the library no number."""
    steps = list(steps)
    return [ranks.measured(rank, steps, lambda step: None, generation=generation) for rank in (0, 1)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def nan_from(first: int) -> Callable[[int], Number]:
    return lambda step: 1.0 if step < first else math.nan


def test_nan_in_a_log_is_a_fault_and_earlier_steps_are_certified(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 41)))
    scene.receive(logs.logged(range(1, 41), nan_from(35)))
    (fault,) = scene.faults
    assert (fault.step, fault.kind, fault.rank) == (35, "nan", 0)
    assert (fault.told_by, fault.tag, fault.logged_step) == ("tensorboard", "train/loss", 7 * 35)
    assert fault.certified == 34 - AFTER


def test_a_loss_that_is_logged_every_tenth_step_certifies_that_much_later(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    for at in range(10, 401, 10):
        scene.receive(*silent(ranks, range(at - 9, at + 1)), logs.logged([at]))
        certified = scene.certified[1] if scene.certified else 0
        # Ten readings, not ten steps, must have been clean.
        assert certified <= max(0, at - 10 * AFTER + 9)
    assert scene.certified == (1, 400 - 10 * AFTER + 9)
    scene.receive(*silent(ranks, range(401, 411)), logs.logged([410], lambda step: math.nan))
    (fault,) = scene.faults
    assert fault.certified == 400 - 10 * AFTER + 9


def test_the_library_takes_precedence_over_a_log(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*ranks.both(range(1, 31)), *ranks.both([31]))
    certified = scene.certified
    assert certified == (1, 31 - AFTER)
    scene.receive(logs.logged(range(1, 32), nan_from(5)))
    assert not scene.faults and scene.certified == certified
    # Of a quantity that the library does not tell the log is received.
    scene.receive(
        logs.logged(range(32, 60), norm=lambda step: 1.0), logs.logged(range(60, 90), norm=lambda step: math.inf)
    )
    assert [(fault.step, fault.quantity) for fault in scene.faults] == [(60, "grad_norm")]


def test_a_log_does_not_certify_quantities_that_the_library_omits(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*ranks.both(range(1, 6)))
    scene.receive(*silent(ranks, range(6, 60)))
    scene.receive(logs.logged(range(6, 60), norm=lambda step: 1.0))
    assert scene.certified == (1, 0)


def test_a_loss_in_a_log_must_stay_high_and_a_gradient_norm_longer(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 101)))
    spikes = {40, 50, 51, 60}
    scene.receive(logs.logged(range(1, 61), lambda step: JUMP if step in spikes else 1.0, lambda step: 1.0))
    scene.receive(logs.logged(range(61, 70), norm=lambda step: 9.0), logs.logged([70], norm=lambda step: 1.0))
    assert not scene.faults
    scene.receive(logs.logged([71, 72], lambda step: JUMP))
    assert not scene.faults
    scene.receive(logs.logged([73], lambda step: JUMP))
    assert [(fault.step, fault.quantity, fault.kind) for fault in scene.faults] == [(71, "loss", "jump")]


def test_a_log_that_never_had_a_number_has_none(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 101)))
    scene.receive(logs.logged(range(1, 60), lambda step: math.nan, rank=1), logs.logged(range(1, 60)))
    assert not scene.faults
    scene.receive(
        logs.logged(range(60, 65), lambda step: 1.0, rank=1), logs.logged([65], lambda step: math.nan, rank=1)
    )
    assert [(fault.step, fault.rank) for fault in scene.faults] == [(65, 1)]


def test_a_step_is_certified_only_when_all_logs_have_passed_it(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 101)))
    scene.receive(logs.logged(range(1, 31)), logs.logged(range(1, 31), rank=1))
    certified = scene.certified
    # The other rank writes its log out seldom: what it will say of these steps nobody knows.
    scene.receive(logs.logged(range(31, 81)))
    assert scene.certified == certified
    scene.receive(logs.logged(range(31, 81), nan_from(60), rank=1))
    (fault,) = scene.faults
    assert (fault.step, fault.rank) == (60, 1)
    assert fault.certified is not None and fault.certified < 60 - AFTER + 1


def test_a_rank_that_stops_logging_does_not_block_certification(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 101)))
    scene.receive(logs.logged([1], rank=1), logs.logged(range(1, 51)))
    assert scene.certified == (1, 0)
    scene.receive(logs.logged(range(51, 90), late=SILENT))
    assert scene.certified == (1, 89 - AFTER)


@pytest.mark.parametrize("analyzer_restarts", [False, True])
def test_a_generation_that_begins_with_nan_is_faulty(scene: Scene, analyzer_restarts: bool) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 61)), logs.logged(range(1, 61)))
    if analyzer_restarts:
        scene.restart()
    # The same numbers again, from a file that goes on: they are of a generation that is over.
    scene.receive(*silent(ranks, range(41, 45), generation=2), logs.logged(range(61, 65), nan_from(61)))
    assert not scene.faults
    scene.receive(logs.logged(range(41, 45), lambda step: math.nan, generation=2))
    assert [(fault.generation, fault.step, fault.certified) for fault in scene.faults] == [(2, 41, 40)]


def test_a_repeated_batch_counts_once_and_a_gap_resets_the_count(scene: Scene) -> None:
    ranks, logs = Ranks(), Logs()
    scene.receive(*silent(ranks, range(1, 101)))
    twice = logs.logged(range(1, AFTER))
    scene.receive(twice, twice, twice)
    assert scene.certified == (1, 0)
    scene.receive(logs.logged(range(AFTER, 31)))
    assert scene.certified == (1, 30 - AFTER)
    logs.logged([31])
    scene.receive(logs.logged(range(32, 32 + AFTER - 1)))
    assert scene.certified == (1, 30 - AFTER)
    scene.receive(logs.logged([32 + AFTER]))
    assert scene.certified == (1, 31)


def test_a_log_of_a_generation_without_steps_is_ignored(scene: Scene) -> None:
    logs = Logs()
    scene.receive(logs.logged(range(1, 61), nan_from(40)))
    assert not scene.emitted
