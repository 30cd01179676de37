"""Reader of the ranks' reports (see `holdfast.trainer.report`). It resumes where it stopped, also after a kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.events import (
    CheckpointRestored,
    CheckpointSaved,
    DiagnosticResult,
    Event,
    KeepingSpaced,
    ReplayResult,
    StepsKept,
)
from holdfast.events.parts.ranks import RankReplay
from holdfast.events.parts.scalars import Count, Step
from holdfast.fresh_ids import uuid7
from holdfast.node.ranks_file import open_ranks_file
from holdfast.orders.node import NodeOrder
from holdfast.trainer.report import (
    CHECKPOINT_RESTORED,
    CHECKPOINT_SAVED,
    DEVICE_USED,
    DIAGNOSTIC_RESULT,
    HOOK_FAILED,
    KEEPING_SPACED,
    REPLAY_RESULT,
    STEPS_KEPT,
)
from holdfast_agent.plan.devices.contexts import DeviceUsed

READ_BYTES_MAX = 1024 * 1024
PER_S = 100
"""Reports of a job that are taken in the long run. Each becomes an event for all services: a script that reports
without end would delay those of other jobs and nodes. The others stay in the file until it is their turn."""
AT_ONCE = 5_000
"""Reports that are taken without delay after a pause: ranks save together, and checks have many results."""
PATH_CHARS_MAX = 4_096

log = structlog.get_logger(__name__)


_AS_THEY_ARE: dict[str, type[DiagnosticResult | CheckpointRestored | StepsKept | KeepingSpaced]] = {
    DIAGNOSTIC_RESULT: DiagnosticResult,
    CHECKPOINT_RESTORED: CheckpointRestored,
    STEPS_KEPT: StepsKept,
    KEEPING_SPACED: KeepingSpaced,
}
"""Reports that have the fields of their event."""

Positive = Annotated[float, msgspec.Meta(gt=0)]


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report file."""

    kind: str
    at_ns: int
    rank: Count
    generation: Count
    fields: dict[str, str | int | float | bool | list[int | str | dict[str, Any]] | None] = {}


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the report `checkpoint_saved`."""

    step: Step
    path: Annotated[str, msgspec.Meta(max_length=PATH_CHARS_MAX)]
    bytes: Count
    took_s: float
    steps: tuple[Step, ...] = ()


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the report `model`."""

    flops_per_token: Positive
    peak_flops: Positive | None = None


class ReportFile:
    """The report file of one job; `offset` is the read position."""

    def __init__(self, path: Path, offset: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self.offset = offset
        self._clock = clock
        self._may_take = float(AT_ONCE)
        self._looked_at = clock()

    def read(self) -> list[RankReport]:
        """Return the reports since the last call, as many as may be taken now. An incomplete last line is left for the
        next call."""
        now = self._clock()
        self._may_take = min(AT_ONCE, self._may_take + PER_S * (now - self._looked_at))
        self._looked_at = now
        try:
            if self._path.stat().st_size <= self.offset:
                return []
            # A rank may hold a lease on its file (F_SETLEASE): to open it in another way would wait for 45 s.
            with os.fdopen(open_ranks_file(self._path), "rb") as file:
                file.seek(self.offset)
                data = file.read(READ_BYTES_MAX)
        except (FileNotFoundError, BlockingIOError):
            return []
        if len(data) == READ_BYTES_MAX and b"\n" not in data:
            # No report is that long. It would be read again at each call, and nothing after it would be reached.
            self.offset += len(data)
            return []
        found: list[RankReport] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            if line.strip():
                if self._may_take < 1:
                    break
                self._may_take -= 1
                if (report := parse(line)) is not None:
                    found.append(report)
            self.offset += len(line)
        return found


def event_of(report: RankReport, order: NodeOrder, node: str, now: datetime) -> Event | None:
    """Convert a report to an event of the order that its rank runs under; None if it makes no event."""
    common: dict[str, Any] = {
        "id": uuid7(),
        "at": now,
        "source": f"agent/{node}",
        "node": node,
        "job": order.job,
        "generation": report.generation,
        "cause": order.cause,
    }
    purpose = order.placement.purpose if order.placement is not None else "train"
    if report.kind == HOOK_FAILED:
        log.warning("a hook failed, and is off in this rank", job=order.job, rank=report.rank, **_texts(report))
        return None
    if purpose == "replay" and report.kind != REPLAY_RESULT:
        return None  # checkpoints of a replay are not the job's
    if (purpose == "checks") != (report.kind == DIAGNOSTIC_RESULT):
        return None  # a training could have any node evicted by results of checks
    try:
        if report.kind == REPLAY_RESULT:
            replay = msgspec.convert(report.fields, RankReplay)
            took_s = msgspec.convert(report.fields.get("took_s", 0.0), float)
            return ReplayResult(**common, incident=order.incident, rank=report.rank, replay=replay, took_s=took_s)
        if report.kind == CHECKPOINT_SAVED:
            saved = msgspec.convert(report.fields, SavedCheckpoint, strict=False)
            fields = msgspec.structs.asdict(saved)
            return CheckpointSaved(**common, checkpoint_bytes=fields.pop("bytes"), **fields)
        if (kind := _AS_THEY_ARE.get(report.kind)) is not None:
            # The agent sets the common fields, whatever the report contains.
            fields = {**report.fields, **common, "incident": order.incident, "type": report.kind}
            return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        log.warning("a report cannot be understood", kind=report.kind, reason=str(error))
    return None


def _texts(report: RankReport) -> dict[str, str]:
    return {name: str(report.fields.get(name, ""))[:PATH_CHARS_MAX] for name in ("hook", "error")}


def described_model(report: RankReport) -> ModelDescription | None:
    """Return a rank's description of its model; None if the report is another one, or cannot be understood."""
    if report.kind != "model":
        return None
    try:
        return msgspec.convert(report.fields, ModelDescription, strict=False)
    except msgspec.ValidationError as error:
        log.warning("a report cannot be understood", kind=report.kind, reason=str(error))
        return None


def device_used(report: RankReport) -> DeviceUsed | None:
    """Return the device on which a rank trains, if that is what it reports."""
    if report.kind != DEVICE_USED:
        return None
    try:
        return msgspec.convert(report.fields, DeviceUsed)
    except msgspec.ValidationError as error:
        log.warning("a report cannot be understood", kind=report.kind, reason=str(error))
        return None


def training_log(report: RankReport) -> str | None:
    path = report.fields.get("path") if report.kind == "training_log" else None
    return path if isinstance(path, str) and len(path) <= PATH_CHARS_MAX else None


def parse(line: bytes) -> RankReport | None:
    """Return the report in a line; None if it is none."""
    try:
        return msgspec.json.decode(line, type=RankReport)
    except UNREADABLE as error:
        log.warning("a report cannot be read", reason=str(error), line=line[:200].decode(errors="replace"))
        return None
