"""This process, bound to some processors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection


def bind(cpus: Collection[int]) -> None:
    """Let all threads of this process, and those that they start, run on these processors only; empty: as before.

    Raises OSError: it may use none of them.
    """
    if not cpus:
        return
    os.sched_setaffinity(0, cpus)
    for thread in os.listdir("/proc/self/task"):
        # It may end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)
