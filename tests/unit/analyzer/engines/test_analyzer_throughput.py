"""Throughput of a job, from the library or its log, and its lasting decline."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import pytest

from holdfast.engines.hardware.peak_flops import PEAK_FLOPS, peak_flops
from holdfast.events import MfuDeclined, NumbersLogged, StepsMeasured, ThroughputMeasured
from holdfast.events.parts.samples import LoggedSample, StepSample
from holdfast.ids import named_id
from holdfast.settings.signals import SignalsPolicy
from holdfast_analyzer.engines.throughput import JobThroughput
from tests.scenes.analyzer import START

POLICY = SignalsPolicy(decline_steps=20, decline_warm_up_steps=5)
BLOCK, WARM_UP = POLICY.decline_steps, POLICY.decline_warm_up_steps


class Pace:
    """A job of two ranks at a pace, and its findings. Each event is repeated, as after a failed commit."""

    def __init__(self, policy: SignalsPolicy = POLICY) -> None:
        self.throughput = JobThroughput("job", policy)
        self.now: datetime = START
        self.step = 0
        self.numbers = 0
        self.emitted: list[ThroughputMeasured | MfuDeclined] = []

    def train(
        self,
        steps: int,
        step_s: Callable[[int], float] | float = 1.0,
        *,
        tokens: int | None = None,
        generation: int = 1,
        flops_per_token: float | None = None,
        peak: float | None = None,
    ) -> None:
        for number in range(self.step + 1, self.step + steps + 1):
            took_s = step_s(number) if callable(step_s) else step_s
            self.now += timedelta(seconds=took_s)
            for rank in (0, 1):
                sample = StepSample(rank=rank, step=number, ended_at=self.now, duration_s=took_s, tokens=tokens)
                self._hear(
                    StepsMeasured(
                        **self._common(generation),
                        node="ab"[rank],
                        samples=(sample,),
                        world_size=2,
                        flops_per_token=flops_per_token,
                        peak_flops=peak,
                    )
                )
        self.step += steps

    def log(self, **numbers: float) -> None:
        sample = LoggedSample(rank=0, step=self.step, logged_step=1, logged_at=self.now, **numbers)  # type: ignore[arg-type]
        event = NumbersLogged(**self._common(1), node="a", samples=(sample,), kind="wandb", path="/a", tags={})
        self.throughput.take_logged(event)

    def _common(self, generation: int) -> dict[str, object]:
        self.numbers += 1
        return {
            "id": named_id(START, self.numbers),
            "at": self.now,
            "source": "a",
            "job": "job",
            "generation": generation,
        }

    def _hear(self, event: StepsMeasured) -> None:
        self.throughput.take(event)
        lost = self.throughput.findings(event.id, self.now)
        self.throughput.take(event)
        found = self.throughput.findings(event.id, self.now)
        assert lost == found
        for finding in found:
            self.throughput.committed(finding)
        self.emitted += found

    @property
    def newest(self) -> ThroughputMeasured:
        return [emitted for emitted in self.emitted if isinstance(emitted, ThroughputMeasured)][-1]

    @property
    def declines(self) -> list[MfuDeclined]:
        return [emitted for emitted in self.emitted if isinstance(emitted, MfuDeclined)]


def test_tokens_a_second_and_mfu_are_those_of_the_whole_job() -> None:
    pace = Pace()
    pace.train(40, 0.5, tokens=1000, flops_per_token=6e9, peak=30e12)
    assert (pace.newest.step_s, pace.newest.tokens_per_s) == (0.5, 2000)
    assert pace.newest.mfu == pytest.approx(2000 * 6e9 / (2 * 30e12))
    assert not pace.newest.is_logged


def test_a_configured_peak_takes_precedence() -> None:
    pace = Pace(SignalsPolicy(peak_flops=60e12))
    pace.train(60, 0.5, tokens=1000, flops_per_token=6e9, peak=30e12)
    assert pace.newest.mfu == pytest.approx(0.1)


def test_a_log_replaces_missing_numbers_of_the_library() -> None:
    pace = Pace()
    pace.train(40)
    assert (pace.newest.tokens_per_s, pace.newest.mfu) == (None, None)
    pace.log(tokens_per_s=512.0, mfu=0.41)
    pace.train(20)
    assert (pace.newest.tokens_per_s, pace.newest.mfu, pace.newest.is_logged) == (512.0, 0.41, True)


def test_throughput_is_reported_when_it_moves_and_rarely_otherwise() -> None:
    pace = Pace()
    pace.train(605)
    assert 9 <= len(pace.emitted) <= 11
    before = len(pace.emitted)
    pace.train(64, 1.2)
    assert len(pace.emitted) > before + 1


def noisy(step_s: float, seed: int) -> Callable[[int], float]:
    rng = random.Random(seed)
    # Every tenth step saves a checkpoint and takes thrice as long.
    return lambda step: step_s * rng.lognormvariate(0, 0.1) * (3.0 if step % 10 == 0 else 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_checkpoints_are_no_decline(seed: int) -> None:
    pace = Pace()
    pace.train(2_000, noisy(1.0, seed))
    assert not pace.declines


@pytest.mark.parametrize("seed", range(3))
def test_a_pace_that_stays_low_is_a_decline_and_reported_once(seed: int) -> None:
    pace = Pace()
    pace.train(400, noisy(1.0, seed))
    pace.train(400, noisy(1.5, seed))
    (decline,) = pace.declines
    assert decline.symptom == "mfu_decline"
    assert decline.since_step + BLOCK >= 400 and decline.since_step <= 400 + BLOCK + 1
    assert 0.6 < decline.share_left < 0.75
    assert decline.step <= 400 + 3 * BLOCK + WARM_UP
    # It recovers, and declines again.
    pace.train(400, noisy(1.0, seed))
    pace.train(400, noisy(1.5, seed))
    assert len(pace.declines) == 2


def test_one_slow_block_is_no_decline() -> None:
    pace = Pace()
    pace.train(WARM_UP + 10 * BLOCK)
    pace.train(BLOCK, 5.0)
    pace.train(10 * BLOCK)
    assert not pace.declines


def test_the_first_steps_of_a_start_do_not_count_and_a_slow_restart_is_a_decline() -> None:
    pace = Pace()
    pace.train(WARM_UP + 5 * BLOCK)
    for generation in range(2, 30):
        # Each start is slow until it is warm.
        pace.train(WARM_UP, 20.0, generation=generation)
        pace.train(BLOCK, generation=generation)
    assert not pace.declines
    pace.train(WARM_UP + 2 * BLOCK, 1.4, generation=30)
    assert [decline.generation for decline in pace.declines] == [30]


def test_growing_batches_are_no_decline_if_tokens_are_reported() -> None:
    pace = Pace()
    pace.train(WARM_UP + 5 * BLOCK, 1.0, tokens=1000)
    pace.train(5 * BLOCK, 2.0, tokens=2000)
    assert not pace.declines
    pace.train(5 * BLOCK, 3.0, tokens=2000)
    assert len(pace.declines) == 1


def test_repeated_or_late_steps_count_once() -> None:
    pace = Pace()
    pace.train(20, 1.0)
    count = pace.throughput.findings(named_id(START, 99_999), pace.now + timedelta(hours=1))
    pace.step = 0
    pace.train(20, 9.0)
    assert pace.newest.step_s == 1.0 and count


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI300X", 1307e12),
        ("Some other device", None),
        ("", None),
    ],
)
def test_the_peak_of_a_device_goes_by_its_name(device: str, expected: float | None) -> None:
    assert peak_flops(device) == expected


def test_no_name_is_hidden_by_a_shorter_one_before_it() -> None:
    names: Iterable[str] = [name for name, _ in PEAK_FLOPS]
    assert all(peak_flops(name) == peak for name, peak in PEAK_FLOPS), names
