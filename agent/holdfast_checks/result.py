"""Input and results of a test."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.engines.checks.suites import Stage

DETAIL_CHARS_MAX = 2_000


class StageResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One result: the fields of `DiagnosticResult` that a test knows. `device`: one of the node's; "" for none."""

    status: Literal["passed", "failed", "broken", "skipped"]
    symptom: str = ""
    peers: tuple[str, ...] = ()
    device: str = ""
    value: float | None = None
    needed: float | None = None
    unit: str = ""
    digest: str = ""
    hardware: str = ""
    detail: str = ""


class WorkerContext(msgspec.Struct, frozen=True, kw_only=True):
    """Place and resources of one of a node's workers, which has its own device."""

    run: str
    node: str
    node_rank: int
    """Rank of the node, of `nodes` in the run."""
    nodes: int
    worker: int = 0
    """Number of this worker, of `workers` on the node."""
    workers: int = 1
    store_host: str = ""
    """Host of the run's store."""
    store_port: int = 0
    job_directory: str = ""
    node_directory: str = ""
    scratch: str = ""
    """Directory that exists for this run on this node only."""
    burn_s: float = 0.1
    """Time for which a device is kept busy."""
    options: dict[str, str] = {}


class StageTask(msgspec.Struct, frozen=True, kw_only=True):
    """One stage for one worker."""

    context: WorkerContext
    stage: Stage
    present: dict[int, str] = {}
    """Nodes that came to the meeting, by node rank."""
    number: int = 0
    """Number of the stage, from 1."""
    limits_s: tuple[float, ...] = ()
    """Limits of the meeting and of all stages."""
    wait_s: float = 0.0
    """Maximum wait for a partner beyond the stage's limit."""


def passed(**fields: object) -> StageResult:
    return msgspec.convert({"status": "passed"} | fields, StageResult)


def failed(symptom: str, detail: str, **fields: object) -> StageResult:
    """Return a failure: the node does not do what every sound node does."""
    return msgspec.convert({"status": "failed", "symptom": symptom, "detail": _short(detail)} | fields, StageResult)


def broken(detail: str, **fields: object) -> StageResult:
    """Return a test that could not run, which shows nothing about the node."""
    return msgspec.convert({"status": "broken", "detail": _short(detail)} | fields, StageResult)


def skipped(detail: str, **fields: object) -> StageResult:
    """Return a test that does not apply here, with the reason."""
    return msgspec.convert({"status": "skipped", "detail": _short(detail)} | fields, StageResult)


def _short(detail: str) -> str:
    return detail if len(detail) <= DETAIL_CHARS_MAX else detail[:DETAIL_CHARS_MAX] + "..."
