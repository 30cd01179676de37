"""Samples."""

from __future__ import annotations

from holdfast.event_parts import Count, StepSample
from holdfast.events.base import Metric


class StepsMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The steps that the ranks of a node completed since the last such event."""

    samples: tuple[StepSample, ...]
    missed: Count = 0
