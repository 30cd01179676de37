"""Selection of training quantities from a log's scalars, grouped by step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.events.parts.training_quantities import Quantity
from holdfast_agent.training_logs.scalars import Scalar
from holdfast_agent.training_logs.tags import TagChoice, Tags, value_of

AT_S_MAX = 1 << 33
"""Times beyond this (the year 2242) are invalid; the next power of two would overflow a clock in ns."""


class StepReading(NamedTuple):
    """Numbers that were logged together. `at_ns`: Unix time of the first of them."""

    step: int
    at_ns: int
    values: dict[Quantity, float]


class StepReadings:
    """Selects the training's quantities from one log. Of several tags for one quantity it keeps the best seen."""

    def __init__(self, tags: Tags, folder: str) -> None:
        self._tags = tags
        self._folder = folder
        self._choices: dict[str, TagChoice | None] = {}
        self.chosen: dict[Quantity, str] = {}
        """The tag of each quantity that was found."""

    def take(self, scalars: Iterable[Scalar]) -> list[StepReading]:
        """Return the readings in these scalars, one for each step."""
        found: list[StepReading] = []
        for scalar in scalars:
            choice = self._choice(scalar.tag)
            if choice is None or not 0 < scalar.at_s < AT_S_MAX or self.chosen[choice.quantity] != scalar.tag:
                continue
            last = found[-1] if found else None
            if last is None or last.step != scalar.step or choice.quantity in last.values:
                last = StepReading(scalar.step, int(scalar.at_s * 1e9), {})
                found.append(last)
            last.values[choice.quantity] = value_of(choice.quantity, scalar.value)
        return found

    def _choice(self, tag: str) -> TagChoice | None:
        if tag not in self._choices:
            if len(self._choices) >= TAGS_MAX:
                return None
            choice = self._choices[tag] = self._tags.choice(tag, self._folder)
            if choice is not None:
                before = self._choices.get(self.chosen.get(choice.quantity, ""))
                if before is None or choice.place < before.place:
                    self.chosen[choice.quantity] = tag
        return self._choices[tag]


TAGS_MAX = 10_000
"""Maximum number of tags examined in a log."""
