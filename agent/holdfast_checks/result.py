"""What a test is told, and what it says."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.engines.checks.suites import Stage

DETAIL_CHARS_MAX = 2_000


class StageResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One result, with the fields of `DiagnosticResult` that a test knows. `device`: none, or which of the node's."""

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
    """Where a test runs: node `node_rank` of `nodes`, on it worker `worker` of `workers`, each with its own device.

    The run's store is on `store_host`:`store_port`. `job_directory` is the job's, `node_directory` the node's own, and
    `scratch` is for this run on this node, and gone afterwards. `burn_s` is how long a device is kept busy.
    """

    run: str
    node: str
    node_rank: int
    nodes: int
    worker: int = 0
    workers: int = 1
    store_host: str = ""
    store_port: int = 0
    job_directory: str = ""
    node_directory: str = ""
    scratch: str = ""
    burn_s: float = 0.1
    options: dict[str, str] = {}


class StageTask(msgspec.Struct, frozen=True, kw_only=True):
    """One stage for one worker. `present` are the names of the nodes that came to the meeting, by node rank.

    It is the run's stage `number`, from 1; `limits_s` are those of the meeting and of all stages. `wait_s` is how long
    a partner may keep it waiting at the very most, beyond the stage's own limit.
    """

    context: WorkerContext
    stage: Stage
    present: dict[int, str] = {}
    number: int = 0
    limits_s: tuple[float, ...] = ()
    wait_s: float = 0.0


def passed(**fields: object) -> StageResult:
    """The test was made, and nothing was found."""
    return msgspec.convert({"status": "passed"} | fields, StageResult)


def failed(symptom: str, detail: str, **fields: object) -> StageResult:
    """The node does not do what every sound one does."""
    return msgspec.convert({"status": "failed", "symptom": symptom, "detail": _short(detail)} | fields, StageResult)


def broken(detail: str, **fields: object) -> StageResult:
    """The test could not be made: that says nothing of the node."""
    return msgspec.convert({"status": "broken", "detail": _short(detail)} | fields, StageResult)


def skipped(detail: str, **fields: object) -> StageResult:
    """The test has no place here, and why."""
    return msgspec.convert({"status": "skipped", "detail": _short(detail)} | fields, StageResult)


def _short(detail: str) -> str:
    return detail if len(detail) <= DETAIL_CHARS_MAX else detail[:DETAIL_CHARS_MAX] + "..."
