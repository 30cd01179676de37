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
    """The place of a worker: worker `worker` of `workers` on node `node_rank` of `nodes`, with its own device. The
    run's store is at `store_host`:`store_port`. `job_directory` is the job's, `node_directory` the node's; `scratch`
    exists for this run on this node only. `burn_s` is the time for which a device is kept busy.
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
    """One stage for one worker. `present`: nodes that came to the meeting, by node rank. `number` is the stage's, from
    1; `limits_s` are those of the meeting and all stages. `wait_s`: maximum wait for a partner beyond the stage's.
    """

    context: WorkerContext
    stage: Stage
    present: dict[int, str] = {}
    number: int = 0
    limits_s: tuple[float, ...] = ()
    wait_s: float = 0.0


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
