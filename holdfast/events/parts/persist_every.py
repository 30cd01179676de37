"""Distance of checkpoints on disk as users write it: "500" steps, "10m", "never"."""

from __future__ import annotations

import re
from typing import NamedTuple

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"(\d{1,9})([smh]?)", re.ASCII)


class PersistEvery(NamedTuple):
    """A number of steps or of seconds; neither means never."""

    steps: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> PersistEvery:
        """Return the distance that `text` describes.

        Raises:
            ValueError: it is in none of these forms; the message lists them.
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
        """Return the distance in steps of `step_s` seconds; 0: never, or not known yet.

        A time is rounded down to a power of two: nodes that receive a change at different times still have steps in
        common. The value `before` stays until it is clearly wrong, so that the result does not oscillate.
        """
        if self.steps or not self.seconds:
            return self.steps
        if not step_s:
            return before
        wanted = self.seconds / step_s
        if before and 0.75 * before <= wanted < 2.5 * before:
            return before
        return 1 << max(int(wanted).bit_length() - 1, 0)
