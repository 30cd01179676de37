"""Reports of a rank to its agent beyond the ledger: JSON lines, appended to the file in HOLDFAST_REPORTS.

One way and without waiting: the agent reads the file from where it stopped, also after either of them was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import msgspec

REPORTS_VARIABLE = "HOLDFAST_REPORTS"
LINE_BYTES_MAX = 65_536
STEPS_LISTED_MAX = 1_000

CHECKPOINT_SAVED = "checkpoint_saved"
DIAGNOSTIC_RESULT = "diagnostic_result"
REPLAY_RESULT = "replay_result"
STEPS_KEPT = "steps_kept"
KEEPING_SPACED = "keeping_spaced"
CHECKPOINT_RESTORED = "checkpoint_restored"
HOOK_FAILED = "hook_failed"
DEVICE_USED = "device_used"

ReportValue = str | int | float | bool | Sequence[int] | Sequence[str] | Sequence[Mapping[str, object]] | None


class ReportTooLong(ValueError):
    """A report is longer than a line may be."""


def report(kind: str, /, **fields: ReportValue) -> None:
    """Append one report; does nothing outside Holdfast.

    Raises:
        ReportTooLong: more than 64 KiB.
        OSError: the file cannot be written, for example because the disk is full.
    """
    path = os.environ.get(REPORTS_VARIABLE)
    if not path:
        return
    rank = int(os.environ.get("RANK", "0"))
    generation = int(os.environ.get("HOLDFAST_GENERATION", "0"))
    line = msgspec.json.encode(
        {"kind": kind, "at_ns": time.time_ns(), "rank": rank, "generation": generation, "fields": fields}
    )
    if len(line) >= LINE_BYTES_MAX:
        raise ReportTooLong(
            f"report {kind!r} is {len(line)} bytes, the limit is {LINE_BYTES_MAX}: keep large data in a file"
        )
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # A line break on both sides: after a write cut short by a full disk the next report still begins a line.
        os.write(descriptor, b"\n" + line + b"\n")
    finally:
        os.close(descriptor)


def checkpoint_saved(*, step: int, path: str, checkpoint_bytes: int, took_s: float, steps: Sequence[int] = ()) -> None:
    """Report that a checkpoint of all ranks is published whole; called by one rank.

    `steps` are all that are there now; none: the caller does not know.
    """
    listed = steps if len(steps) <= STEPS_LISTED_MAX else ()
    report(CHECKPOINT_SAVED, step=step, path=path, bytes=checkpoint_bytes, took_s=took_s, steps=listed)
