"""Two jobs alive at once, or two ways of running one, that take turns of a second: while one has its slice, the other
stands still.

A machine with neighbours changes within tens of seconds. Slices that lie side by side see the same machine, so only
they are compared, and the median over such pairs is the figure. A slice's own figure is its mean: a service that does
all its work in one step of twenty is in it, and in no median.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, quantiles
from typing import NamedTuple

from launchers import LauncherFailed
from records import Records

SLICE_S = 1.0
SLICE_MAX_S = 3.0
"""On a busy machine a slice lasts until it holds enough steps. So long the other side says nothing: an agent counts as
lost after 6 s of silence (`node_lost_s` in holdfast/settings/timeouts.py), torchrun's agent after 15 s."""

DROPPED_STEPS = 4
"""Steps dropped from each slice: the first was cut by a stop, the others fill caches."""

STEPS_MIN = 5
POLL_S = 0.1

Find = Callable[[], set[int]]
"""The processes to stop, looked up each time."""


class Side(NamedTuple):
    """One side: the records of its rank 0, and the processes to stop while the other side has its slice."""

    name: str
    records: Records
    standing_still: Callable[[], contextlib.AbstractContextManager[None]]


class Slice(NamedTuple):
    """A slice of one side: the mean step of its rank 0 in seconds, while the other was stopped."""

    side: str
    lasted_s: float
    step_s: float


def take_turns(first: Side, second: Side, slices: int) -> list[Slice]:
    """So many slices of each side, in the order of time.

    Raises:
        LauncherFailed: a job hardly got forward in its slice, or was started again meanwhile.
    """
    found = []
    for side, other in [(first, second), (second, first)] * slices:
        with other.standing_still():
            found.append(_slice(side))
    return found


def over_percent(slices: Sequence[Slice], baseline: str) -> list[float]:
    """Return by how much the other side's step is longer than the baseline's, for each pair of neighbouring slices.

    They come as first, second, second, first, ...: each slice is in one pair, and who goes first changes.
    """
    sides = zip(slices[::2], slices[1::2], strict=True)
    pairs = [(a, b) if a.side == baseline else (b, a) for a, b in sides]
    return [100 * (other.step_s / base.step_s - 1) for base, other in pairs]


def standard_error(values: Sequence[float]) -> float | None:
    """Return the error of the median of independent values, from their middle half, which ignores outliers."""
    if len(values) < 2:
        return None
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    # Of normal values, half lie within 1.349 standard deviations, and a median errs 1.2533 times as much as a mean.
    return 1.2533 * (upper - lower) / 1.349 / len(values) ** 0.5


@contextlib.contextmanager
def stopped(find: Find) -> Iterator[None]:
    """These processes stand still; who was started by one of them before it stopped is found by looking again."""
    pids: set[int] = set()
    try:
        while new := find() - pids:
            pids |= new
            _send(signal.SIGSTOP, new)
        yield
    finally:
        _send(signal.SIGCONT, pids)


def _send(number: signal.Signals, pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _slice(side: Side) -> Slice:
    began = time.time()
    time.sleep(SLICE_S)
    while len(steps_s := _steps_s(side, began)) < STEPS_MIN:
        if time.time() - began > SLICE_MAX_S:
            raise LauncherFailed(f"{side.name} did {len(steps_s)} steps in {SLICE_MAX_S:g} s that count: too few")
        time.sleep(POLL_S)
    return Slice(side.name, time.time() - began, fmean(steps_s))


def _steps_s(side: Side, since: float) -> list[float]:
    side.records.read()
    lives = side.records.lives[0]
    if len(lives) > 1:
        raise LauncherFailed(f"{side.name} was started again: its figures are of two processes")
    stamps = [step.at for step in lives[0].steps if step.at >= since][DROPPED_STEPS:]
    return [after - before for before, after in pairwise(stamps)]
