"""How often a step is brought from the nodes' memory to the disk, as people say it: "500", "10m", "never"."""

from __future__ import annotations

import re
from typing import NamedTuple

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"(\d{1,9})([smh]?)")


class PersistEvery(NamedTuple):
    """Every so many steps, or every so many seconds; neither: never."""

    steps: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> PersistEvery:
        """
        Raises:
            ValueError: it is none of these; the message says which there are.
        """
        if text == "never":
            return cls()
        match = _TEXT.fullmatch(text)
        if match is None or not int(match[1]):
            raise ValueError(f'{text!r} is no distance of checkpoints: give steps ("500"), a time ("10m"), or "never"')
        if not match[2]:
            return cls(steps=int(match[1]))
        return cls(seconds=int(match[1]) * _UNITS[match[2]])

    def in_steps(self, step_s: float | None, before: int = 0) -> int:
        """How many steps that is, if one takes `step_s`; 0: never, or it is not known yet.

        Of a time it is the power of two below: nodes that hear of a change at different times still have steps in
        common. What it was `before` stays until it is clearly wrong, or it would go to and fro.
        """
        if self.steps or not self.seconds:
            return self.steps
        if not step_s:
            return before
        wanted = self.seconds / step_s
        if before and 0.75 * before <= wanted < 2.5 * before:
            return before
        return 1 << max(int(wanted).bit_length() - 1, 0)
