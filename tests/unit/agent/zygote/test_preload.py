"""What forks of a process that has torch need not do."""

from __future__ import annotations

import sys

from tests.warm_python import run_warm

COUNT = """
import weakref
ends = [end for end in list(weakref.finalize._registry) if end.peek()[1].__module__ == "torch.library"]
print(len(ends), sum(end.atexit for end in ends))
"""


def test_no_library_of_torch_is_taken_apart_at_the_end() -> None:
    libraries, taken_apart = map(int, run_warm([sys.executable, "-c", COUNT]).stdout.split())
    assert libraries > 0 and taken_apart == 0
