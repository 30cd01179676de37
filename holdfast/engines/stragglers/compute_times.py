"""Durations of forward and backward passes, factored by stage, worker and microbatch, with a rest. Pure.

A duration is the product of the usual time of its class (a kind of pass on one stage's chunk), a factor of its worker
if that is slower than its peers, a factor of its microbatch that also shows on other stages, and a rest. Peers are the
other data-parallel ranks of the same stage: they do the same work on other data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.slow_spans import SlowSpan, slow_spans
from holdfast.engines.stragglers.traces.operations import COMPUTE, Floats, Ints
from holdfast.engines.stragglers.traces.step_shape import StepShape

_SLOPE_MAX = 1.5
_PAUSE = 1.5
"""A pass paused if it takes this many times its expected time, and more than `_PAUSE_DEVIATIONS` beyond it."""
_PAUSE_DEVIATIONS = 8.0
_LIGHTEST, _AS_MUCH = 0.1, 0.75
"""A slow machine is slow with the lightest microbatches (this quantile) too, by at least this share of its factor."""
_TINY_S = 1e-9


class PassTimes(NamedTuple):
    """Durations of passes in seconds, classes x dp_ranks x steps x microbatches. A class is (kind, stage, chunk), kind
    0 forward, 1 backward. `rows`: the shape's rows; `at`: their flat positions, classes x dp_ranks x microbatches."""

    duration_s: Floats
    kind: Ints
    stage: Ints
    rows: Ints
    at: Ints

    def of_rows(self, values: Floats) -> Floats:
        """Convert values of this layout to rows x steps."""
        classes, dp_size, steps, microbatches = self.duration_s.shape
        by_place = np.broadcast_to(values, self.duration_s.shape).transpose(0, 1, 3, 2)
        return by_place.reshape(classes * dp_size * microbatches, steps)[self.at]


class PassFactors(NamedTuple):
    """Factors of each duration; all broadcast to classes x dp_ranks x steps x microbatches. duration = usual_s x worker
    x content x rest. `balanced_s`: the usual time with equal stages."""

    usual_s: Floats
    balanced_s: Floats
    worker: Floats
    content: Floats
    rest: Floats
    is_pause: NDArray[np.bool_]
    spans: tuple[SlowSpan, ...]
    correlation: float


def passes(shape: StepShape) -> PassTimes:
    """Return the passes of a step's shape. A pass without any record gets the usual time of its class."""
    rows = np.flatnonzero(shape.is_compute)
    kind = (shape.kind[rows] == shape.number_of(COMPUTE[1])).astype(np.int64)
    chunks = int(shape.chunk[rows].max()) + 1
    names = (kind * shape.pp_size + shape.stage[rows]) * chunks + shape.chunk[rows]
    classes, of_class = np.unique(names, return_inverse=True)
    microbatch = np.empty(len(rows), np.int64)
    for dp_rank in range(shape.dp_size):
        own = shape.dp_rank[rows] == dp_rank
        microbatch[own] = np.unique(shape.microbatch[rows][own], return_inverse=True)[1]
    of_worker = of_class * shape.dp_size + shape.dp_rank[rows]
    if len(np.unique(np.stack((of_worker, microbatch)), axis=1)[0]) < len(rows):
        microbatch = _in_order(of_worker, shape.sequence[rows])
    count = int(microbatch.max()) + 1
    at = of_worker * count + microbatch
    flat = np.full((len(classes) * shape.dp_size * count, len(shape.steps)), np.nan)
    flat[at] = shape.duration_s[rows]
    duration_s = flat.reshape(len(classes), shape.dp_size, count, -1).transpose(0, 1, 3, 2)
    for one in duration_s:
        one[np.isnan(one)] = np.nanmedian(one)
    stage = classes // chunks % shape.pp_size
    kinds = classes // (chunks * shape.pp_size)
    return PassTimes(np.maximum(duration_s, _TINY_S), kinds, stage, rows, at)


def _in_order(groups: Ints, sequence: Ints) -> Ints:
    """Return positions within groups, in place of microbatch numbers that are not unique."""
    order = np.lexsort((sequence, groups))
    first = np.r_[True, np.diff(groups[order]) != 0]
    place = np.empty_like(groups)
    place[order] = np.arange(len(groups)) - np.maximum.accumulate(np.where(first, np.arange(len(groups)), 0))
    return place


def parts_of(found: PassTimes, on_one_machine: frozenset[int] = frozenset()) -> PassFactors:
    """Factor the durations. `on_one_machine`: data-parallel ranks whose stages may all be on one machine. In any other
    pipeline, a slowdown of all stages alike is due to its data."""
    logs = np.log(found.duration_s)
    per_step = _lower_median(logs, axis=3)
    usual = _lower_median(np.median(per_step, axis=2), axis=1)[:, None, None]
    stages = np.unique(found.stage)
    beyond = np.stack([_whole(per_step[found.stage == one]) - _whole(usual[found.stage == one]) for one in stages])
    if beyond.shape[1] > 1:
        beyond -= _lower_median(beyond, axis=1)[:, None]
    alone = beyond - _shared_with_others(beyond, sorted(on_one_machine))
    spans = slow_spans(alone, _sampling_noise(logs))
    spans = [span for span in spans if _is_no_data(span, spans, found, logs - usual[..., None], on_one_machine)]
    worker = np.zeros_like(per_step)
    for span in spans:
        for one in np.flatnonzero(found.stage == stages[span.stage]):
            slow = (per_step - usual)[one, span.dp_rank, span.first : span.last + 1]
            shared = (beyond - alone)[span.stage, span.dp_rank, span.first : span.last + 1]
            worker[one, span.dp_rank, span.first : span.last + 1] = max(np.median(slow - shared), 0.0)
    left = logs - usual[..., None] - worker[..., None]
    content = _content(left, found, len(stages))
    rest = left - content
    is_pause = _pauses(rest)
    calm = np.where(is_pause, 0.0, rest)
    content_mean = np.exp(content).mean(axis=(1, 2, 3), keepdims=True)
    usual_s = np.exp(usual[..., None]) * content_mean * np.exp(calm).mean(axis=(1, 2, 3), keepdims=True)
    balanced_s = np.empty_like(usual_s)
    for kind in (0, 1):
        balanced_s[found.kind == kind] = usual_s[found.kind == kind].mean() if (found.kind == kind).any() else 0.0
    content_factor = np.exp(content) / content_mean
    worker_factor = np.exp(worker)[..., None]
    rest_factor = found.duration_s / (usual_s * worker_factor * content_factor)
    return PassFactors(
        usual_s,
        balanced_s,
        worker_factor,
        content_factor,
        rest_factor,
        is_pause,
        tuple(span._replace(stage=int(stages[span.stage])) for span in spans),
        _correlation(left, found),
    )


def _whole(logs: Floats) -> Floats:
    """Sum all passes of a worker; input and output are logarithms."""
    whole: Floats = np.log(np.exp(logs).sum(axis=0))
    return whole


def _is_no_data(
    span: SlowSpan, spans: list[SlowSpan], found: PassTimes, beyond: Floats, on_one_machine: frozenset[int]
) -> bool:
    """True if the worker is slow, not its data. `beyond`: logarithms over the usual time."""
    stages = np.unique(found.stage)
    if len(stages) == 1 or span.dp_rank in on_one_machine:
        # No other stage shows the load of its data.
        return _slows_the_lightest(span, beyond[found.stage == stages[span.stage]])
    return not _slow_everywhere(span, spans, stages)


def _slow_everywhere(span: SlowSpan, spans: list[SlowSpan], stages: Ints) -> bool:
    """True if all stages of the span's pipeline are slow during most of it."""
    steps = set(range(span.first, span.last + 1))
    together = {
        other.stage
        for other in spans
        if other.dp_rank == span.dp_rank and 2 * len(steps & set(range(other.first, other.last + 1))) > len(steps)
    }
    return len(together) == len(stages)


def _slows_the_lightest(span: SlowSpan, beyond: Floats) -> bool:
    """True if in slow steps the lightest microbatches are slow too: long sequences do not affect short ones."""
    inside = beyond[:, :, span.first : span.last + 1]
    slow = np.median(inside[:, span.dp_rank], axis=2).mean(axis=0) > np.log(span.times) / 2
    if not slow.any():
        return False
    light = np.quantile(inside[:, :, slow], _LIGHTEST, axis=(2, 3)).mean(axis=0)
    own, others = light[span.dp_rank], np.delete(light, span.dp_rank)
    return not len(others) or bool(own - np.median(others) > _AS_MUCH * np.log(span.times))


def _lower_median(values: Floats, axis: int) -> Floats:
    """Return the median, or the lower of two middle values: one slow worker of two must not count as usual."""
    middle: Floats = np.take(np.sort(values, axis=axis), (values.shape[axis] - 1) // 2, axis=axis)
    return middle


def _shared_with_others(beyond: Floats, on_one_machine: list[int]) -> Floats:
    """Return the part of each worker's excess over its peers that other stages of its pipeline show as well. Stages x
    dp_ranks x steps. Heavy microbatches slow all stages of their pipeline, a slow machine only its own. For pipelines
    on one machine there is no evidence, so 0."""
    shared = np.zeros_like(beyond)
    if len(beyond) < 2:
        return shared
    for stage in range(len(beyond)):
        others = _lower_median(np.delete(beyond, stage, axis=0), axis=0)
        own = beyond[stage]
        moves, with_it = (one - np.median(one, axis=1, keepdims=True) for one in (others, own))
        shared[stage] = others * _slope(moves, with_it)
    shared[:, on_one_machine] = 0.0
    return shared


def _slope(cause: Floats, effect: Floats) -> float:
    """Return the slope of effect over cause, limited; 0 if they are not correlated."""
    limit = 5 * np.median(np.abs(effect)) + 2 * np.quantile(np.abs(cause), 0.99) + 1e-6
    effect = np.clip(effect, -limit, limit)
    square = float((cause * cause).sum())
    together = float((cause * effect).sum())
    if square <= 1e-12 or together * together < 0.1 * square * float((effect * effect).sum()):
        return 0.0
    return float(np.clip(together / square, 0.0, _SLOPE_MAX))


def _sampling_noise(logs: Floats) -> float:
    """Return one standard deviation of the median over a step's microbatches, by chance."""
    spread = 1.4826 * np.median(np.abs(logs - np.median(logs, axis=3, keepdims=True)))
    return float(1.25 * spread / np.sqrt(logs.shape[3]))


def _content(left: Floats, found: PassTimes, stages: int) -> Floats:
    """Return each microbatch's excess that other stages show too (with one stage: its other pass). Logarithms."""
    content = np.zeros_like(left)
    for one in range(len(left)):
        others = found.stage != found.stage[one] if stages > 1 else found.kind != found.kind[one]
        if not others.any():
            continue
        seen = _agreed(left[others])
        slope = _slope(seen - np.median(seen), left[one] - np.median(left[one]))
        content[one] = slope * seen
    return content


def _agreed(values: Floats) -> Floats:
    """Combine several measurements of one value; a single outlier does not count."""
    if len(values) == 1:
        only: Floats = values[0]
        return only
    if len(values) == 2:
        first, second = values
        lesser = np.where(np.abs(first) < np.abs(second), first, second)
        return np.where(first * second > 0, lesser, 0.0)
    return np.median(values, axis=0)


def _pauses(rest: Floats) -> NDArray[np.bool_]:
    deviation = 1.4826 * np.median(np.abs(rest - np.median(rest)))
    beyond = rest - np.median(rest, axis=(2, 3), keepdims=True)
    found: NDArray[np.bool_] = beyond > max(np.log(_PAUSE), _PAUSE_DEVIATIONS * deviation)
    return found


def _correlation(left: Floats, found: PassTimes) -> float:
    """Return the correlation of a microbatch's forward and backward passes, within workers (the paper's §5.3)."""
    level = left - np.median(left, axis=(2, 3), keepdims=True)
    forward, backward = ([level[i] for i in np.flatnonzero(found.kind == kind)] for kind in (0, 1))
    if len(forward) != len(backward) or not forward:
        return 0.0
    a, b = (np.clip(np.stack(side).ravel(), -3.0, 3.0) for side in (forward, backward))
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 1e-12 else 0.0
