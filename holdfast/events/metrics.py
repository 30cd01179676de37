"""Samples."""

from __future__ import annotations

from holdfast.event_parts import Count, StepSample
from holdfast.events.base import Metric


class StepsMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The steps that the ranks of a node completed since the last such event.

    `before` counts those that the node's ranks completed earlier in this generation, `missed` those that nobody read:
    who adds them up sees whether an event is still on its way. `world_size` is how many ranks the job has.
    """

    samples: tuple[StepSample, ...]
    missed: Count = 0
    before: Count = 0
    world_size: Count = 0
