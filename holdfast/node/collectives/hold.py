"""The agent's side of a hold: a rank's training waits inside its hooks until a given time or until it is released.

The request is in the rank's ring of collectives (`holdfast.node.collectives.ring_layout`); the rank obeys it at the
end of a step or at a collective, and ends it by itself when its time is over, because the agent may be gone.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from holdfast.node.collectives.ring_layout import HELD_OFFSET, HOLD_OFFSET, WORD, RingError
from holdfast.node.collectives.ring_reader import RingReader


class Product(NamedTuple):
    """A matrix product of a held rank, by the mean of several."""

    took_s: float
    waited_s: float
    """Part of it for which the rank waited for a processor that others used."""


class Hold:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the ring of a rank. Raises as `RingReader`."""
        self._ring = RingReader(path, to_ask=True)
        # Of this machine since it started: no other hold has it.
        self.number = time.monotonic_ns()

    def begin(self, after_step: int, until_ns: int) -> None:
        """Let nothing begin after this step until `until_ns` of the monotonic clock."""
        self._write(1, after_step, until_ns, 0)
        self._write(0, self.number)

    def multiply(self, duration_s: float) -> None:
        """Have the rank multiply matrices for this time in seconds, on the device that it trains on."""
        # The rank writes here only while it multiplies.
        self._ring.write(HELD_OFFSET + 2 * WORD.size, 0)
        self._write(3, round(duration_s * 1e9))

    def end(self) -> None:
        self._write(0, 0)

    @property
    def is_held(self) -> bool:
        """True if the rank waits in it now."""
        return self._held()[0] == self.number

    @property
    def product(self) -> Product | None:
        """The last matrix product; None if not known yet."""
        _, _, took_ns, number, waited_ns = self._held()
        return Product(took_ns / 1e9, waited_ns / 1e9) if number == self.number and took_ns else None

    def close(self) -> None:
        """Close the file; a hold that was not ended runs out."""
        self._ring.close()

    def _write(self, place: int, *words: int) -> None:
        for number, word in enumerate(words, start=place):
            self._ring.write(HOLD_OFFSET + number * WORD.size, word)

    def _held(self) -> tuple[int, int, int, int, int]:
        try:
            return self._ring.hold()
        except RingError:
            return (0, 0, 0, 0, 0)
