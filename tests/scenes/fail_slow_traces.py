"""Iteration times of jobs that fail slow, and of jobs that do not, with the noise that GREYHOUND §3 and §4.2 describe.

Each trace is drawn from its seed. Noise: jitter, collections of Python's garbage, misses of the memory allocator that
last an iteration or two, uneven sequences, checkpoints, jitter that lasts, slow drift, and shifts that stay below 10 %;
samples are lost. Fail-slows: of computation (§3.2: 12 % and more, minutes long, at once or little by little, some from
the first iteration on) and of communication (§3.3, §3.4: up to several times as long, from half a minute to hours, in
ladders, of which some have only steps below 10 %, with times that fluctuate while it lasts).
"""

from __future__ import annotations

import math
import random
from typing import Literal, NamedTuple

Cause = Literal["computation", "communication"]

ITERATIONS = 5_000
WARM_UP_MAX = 8
SLOW_SHARE = 0.5
TRUE_CHANGE = math.log(1.10)


class Step(NamedTuple):
    """The true pace changes by 10 % or more: from `index` on, over `ramp` iterations; logarithms of the factor."""

    index: int
    ramp: int
    before: float
    after: float

    @property
    def is_slower(self) -> bool:
        return self.after > self.before


class Trace(NamedTuple):
    """`durations_s[i]` is of iteration `numbers[i]`: some are lost. `steps` are what there is to be found; `levels` the
    true pace of each iteration, as logarithms of the factor."""

    seed: int
    cause: Cause
    noises: tuple[str, ...]
    numbers: list[int]
    durations_s: list[float]
    levels: list[float]
    steps: tuple[Step, ...]

    @property
    def is_slow(self) -> bool:
        return bool(self.steps)


def trace(seed: int, cause: Cause, iterations: int = ITERATIONS) -> Trace:
    """The trace of this seed."""
    chance = random.Random(f"{cause} {seed}")
    slow = [0.0] * iterations
    steps: list[Step] = []
    if chance.random() < SLOW_SHARE:
        steps = _computation(chance, slow) if cause == "computation" else _communication(chance, slow)
    noise, names = _noise(chance, cause, slow)
    base_s = chance.uniform(0.2, 1.0) if cause == "computation" else chance.uniform(0.5, 4.0)
    lost = chance.uniform(0.001, 0.02) if chance.random() < 0.3 else 0.0
    numbers = [number for number in range(iterations) if chance.random() >= lost]
    times = [base_s * math.exp(slow[number] + noise[number]) for number in numbers]
    return Trace(seed, cause, (*names, *(("lost",) if lost else ())), numbers, times, slow, tuple(steps))


# --- fail-slows ---------------------------------------------------------------------------------------


def _computation(chance: random.Random, slow: list[float]) -> list[Step]:
    steps: list[Step] = []
    at = 0 if chance.random() < 0.05 else chance.randrange(100, len(slow) // 2)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        lasts = int(min(4_000.0, max(60.0, chance.lognormvariate(6.4, 0.9))))
        factor = math.log1p(
            chance.choice((chance.uniform(0.12, 0.25), chance.uniform(0.2, 0.6), chance.uniform(0.5, 2.0)))
        )
        ramp = chance.randrange(10, 101) if at and chance.random() < 0.2 else 0
        _add(slow, steps, at, ramp, lasts + ramp, factor)
        at += ramp + lasts + chance.randrange(100, 1_500)
        if at + 100 > len(slow):
            break
    return steps


def _communication(chance: random.Random, slow: list[float]) -> list[Step]:
    steps: list[Step] = []
    at = chance.randrange(100, len(slow) // 2)
    for _ in range(chance.choice((1, 1, 2, 3, 4))):
        lasts = int(min(4_000.0, max(30.0, chance.lognormvariate(6.0, 1.2))))
        factor = math.log(1.12) + (math.log(6.0) - math.log(1.12)) * chance.random() ** 2
        if chance.random() < 0.15:
            _ladder(chance, slow, steps, at, max(lasts, 300))
        else:
            _add(slow, steps, at, 0, lasts, factor)
        at += max(lasts, 300) + chance.randrange(100, 1_500)
        if at + 100 > len(slow):
            break
    return steps


def _ladder(chance: random.Random, slow: list[float], steps: list[Step], at: int, lasts: int) -> None:
    """Several steps up, each half as long again or so; in one ladder of five each is below 10 %. One step down."""
    is_shallow = chance.random() < 0.2
    rungs = chance.randrange(3, 6)
    end = min(len(slow), at + lasts)
    height = anchor = 0.0
    for rung in range(rungs):
        start = at + rung * lasts // rungs
        height += math.log1p(chance.uniform(0.05, 0.09) if is_shallow else chance.uniform(0.12, 0.6))
        for number in range(start, end):
            slow[number] = height
        if height - anchor >= TRUE_CHANGE and start < end:
            steps.append(Step(start, 0, anchor, height))
            anchor = height
    if end < len(slow):
        steps.append(Step(end, 0, height, 0.0))


def _add(slow: list[float], steps: list[Step], at: int, ramp: int, lasts: int, factor: float) -> None:
    end = min(len(slow), at + lasts)
    for number in range(at, end):
        slow[number] = factor * min(1.0, (number - at + 1) / (ramp + 1))
    if at:
        steps.append(Step(at, ramp, 0.0, factor))
    if end < len(slow):
        steps.append(Step(end, 0, factor, 0.0))


# --- noise --------------------------------------------------------------------------------------------


def _noise(chance: random.Random, cause: Cause, slow: list[float]) -> tuple[list[float], list[str]]:
    """Logarithms of factors, and the names of the noises that are in it."""
    total = len(slow)
    jitter = chance.uniform(0.003, 0.02) if cause == "computation" else chance.uniform(0.005, 0.04)
    noise = [chance.gauss(0.0, jitter) for _ in range(total)]
    for number in range(chance.randrange(1, WARM_UP_MAX)):
        noise[number] += math.log(chance.uniform(1.2, 5.0))
    names = [name for name in _NOISES if chance.random() < _NOISES[name]]
    if "garbage" in names:
        every, size = chance.randrange(50, 400), chance.uniform(0.03, 0.3)
        for number in range(every, total, every):
            noise[number] += math.log1p(size * chance.uniform(0.7, 1.3))
    if "allocator" in names:
        rate, two = 1.0 / chance.uniform(50, 500), chance.uniform(0.0, 0.5)
        for number in range(10, total - 1):
            if chance.random() < rate:
                size = chance.uniform(0.1, 1.5)
                noise[number] += math.log1p(size)
                if chance.random() < two:
                    noise[number + 1] += math.log1p(size * chance.uniform(0.5, 1.0))
    if "sequences" in names:
        spread = chance.uniform(0.01, 0.04)
        noise = [value + spread * (chance.gammavariate(2.0, 1.0) - 2.0) / math.sqrt(2.0) for value in noise]
    if "checkpoints" in names:
        for number in range(every := chance.randrange(100, 1_000), total, every):
            noise[number] += math.log(chance.uniform(1.5, 20.0))
    if "lasting" in names:
        stays, step, now = chance.uniform(0.7, 0.95), chance.uniform(0.005, 0.015), 0.0
        for number in range(total):
            now = stays * now + chance.gauss(0.0, step * math.sqrt(1.0 - stays * stays))
            noise[number] += now
    if "drift" in names:
        size, turns = chance.uniform(0.005, 0.025), chance.uniform(0.5, 4.0)
        noise = [value + size * math.sin(turns * math.tau * place / total) for place, value in enumerate(noise)]
    if "shifts" in names:
        for _ in range(chance.randrange(1, 4)):
            start = chance.randrange(50, total)
            size = math.log1p(chance.choice((-1, 1)) * chance.uniform(0.015, 0.045))
            for number in range(start, min(total, start + chance.randrange(20, 800))):
                noise[number] += size / 2 if abs(noise[number]) > 0.05 else size
    if cause == "communication":
        fluctuates = chance.uniform(0.0, 0.06)
        noise = [value + (chance.gauss(0.0, fluctuates) if slow[at] else 0.0) for at, value in enumerate(noise)]
    return noise, names


_NOISES = {
    "garbage": 0.5,
    "allocator": 0.5,
    "sequences": 0.3,
    "checkpoints": 0.5,
    "lasting": 0.3,
    "drift": 0.3,
    "shifts": 0.3,
}
