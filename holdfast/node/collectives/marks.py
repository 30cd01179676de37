"""The agent asks a rank how far its device has come, by marks, and gives it some time to answer.

A mark is an event that the rank puts into a stream of its device before each collective
(`holdfast/trainer/hooks/kernel_starts.py`). A thread of the rank answers, looking twice a second. It does not while the
rank is stopped, or holds the interpreter's lock: then nothing more is known than before.
"""

from __future__ import annotations

import os
import time

from holdfast.node.collectives.ring_layout import MARKS_OFFSET
from holdfast.node.collectives.ring_reader import RingReader

ANSWER_S = 0.9
_LOOK_EVERY_S = 0.02


def ask_for_marks(path: str | os.PathLike[str], within_s: float = ANSWER_S) -> bool:
    """Have the rank with this ring write into it which marks its device has reached; False: it puts none, or has not
    answered. Raises FileNotFoundError: there is no ring; RingError: as `RingReader`.
    """
    ring = RingReader(path, to_ask=True)
    try:
        if not ring.marks().are_put:
            return False
        number, until = time.monotonic_ns(), time.monotonic() + within_s
        ring.write(MARKS_OFFSET, number)
        while ring.marks().answered != number:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True
    finally:
        ring.close()
