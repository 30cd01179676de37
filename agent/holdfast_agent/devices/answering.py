"""The loop of a process that asks a device's library: one line of JSON for each line on stdin.

It is a process because a call into a hanging driver never returns, not even on SIGKILL. It exits at the end of stdin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

Report = msgspec.Struct

_encoder = msgspec.json.Encoder()


def serve(begin: Callable[[], Callable[[], Report] | Report]) -> None:
    """Answer with what `begin` returns: what reports; or what is missing, and then it is called again next time."""
    report: Callable[[], Report] | Report | None = None
    for _ in sys.stdin:
        if report is None or isinstance(report, Report):
            report = begin()
        answer = report if isinstance(report, Report) else report()
        sys.stdout.buffer.write(_encoder.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
