"""Windows of recorded telemetry: healthy training and incidents. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.engines.telemetry.model import WindowSettings
from holdfast.engines.telemetry.windows import Floats, Sample, Window, filled, in_octaves, usual_level, window_of


class IncidentSpan(NamedTuple):
    """An incident of a job, in slots: from its first sign to its end. `is_silent`: visible only in metrics."""

    job: str
    first: int
    last: int
    is_silent: bool


class RecordedWindows(NamedTuple):
    """`healthy` windows in order of time, and `troubled` ones, which end in an incident."""

    healthy: list[Window]
    troubled: list[Window]


def cut(
    samples: Iterable[tuple[str, int, Sample]],
    troubles: Sequence[IncidentSpan],
    settings: WindowSettings,
    level_after: int,
) -> RecordedWindows:
    """Cut each job's and generation's samples into windows. A generation's first `level_after` slots set its usual
    level; windows that overlap an incident are not healthy."""
    recorded: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for job, generation, sample in samples:
        recorded[job, generation].append(sample)
    healthy: list[tuple[int, Window]] = []
    troubled: list[Window] = []
    for (job, _), known in recorded.items():
        begun, ended = min(sample.slot for sample in known), max(sample.slot for sample in known)
        if ended - begun < level_after + settings.window:
            continue
        level = usual_level(window_of(known, range(begun, begun + level_after)))
        of_job = [trouble for trouble in troubles if trouble.job == job]
        by_slot: dict[int, list[Sample]] = defaultdict(list)
        for sample in known:
            by_slot[sample.slot].append(sample)
        for end in range(begun + level_after + settings.window, ended + 1, settings.window // 2):
            touched = any(trouble.first < end and trouble.last >= end - settings.window for trouble in of_job)
            window = _window(by_slot, end, settings.window, level)
            if not touched and window.ranks:
                healthy.append((end, window))
        for trouble in of_job:
            end = min(trouble.last, trouble.first + 2 * settings.length)
            if trouble.is_silent and begun + level_after + settings.window <= end <= ended + 1:
                troubled.append(_window(by_slot, end, settings.window, level))
    healthy.sort(key=lambda pair: pair[0])
    return RecordedWindows([window for _, window in healthy], [window for window in troubled if window.ranks])


def _window(by_slot: Mapping[int, list[Sample]], end: int, length: int, level: Floats) -> Window:
    slots = range(end - length, end)
    found = (sample for slot in slots for sample in by_slot.get(slot, ()))
    return filled(in_octaves(window_of(found, slots), level))
