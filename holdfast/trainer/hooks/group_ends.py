"""The end of process groups, without a deadlock of torch's (2.13, gloo; seen without Holdfast at 1 of 190 ends).

A thread of gloo lets go of a collective under the group's lock, and needs the interpreter's lock for that. Python takes
the last reference to the group away and holds the interpreter's lock while the group waits for its own: without end if
that thread has not let go yet. A script that trains in a function hung as that returned, with DDP among its variables.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

LAST_COLLECTIVE_S = 0.05
"""Time for threads of gloo to let go of a collective that is over; they need some microseconds and a processor."""


def after_last_collective(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Hook `destroy_process_group`: the interpreter's lock is free for a while before it begins."""

    @functools.wraps(destroy)
    def call(*args: Any, **kwargs: Any) -> Any:
        time.sleep(LAST_COLLECTIVE_S)
        return destroy(*args, **kwargs)

    return call
