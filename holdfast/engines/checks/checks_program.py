"""A run of checks as a job spec: one process per node, which starts a worker for each device. Pure."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import deadline_s
from holdfast.events.parts.job import JobSpec

PROGRAM = "holdfast_checks"
"""Module that the ranks of checks run."""

SCRATCH_PREFIX = "holdfast-checks-"
"""Begins the names of the directories that checks make in shared memory while they run."""

DEFAULT_SUITE = "quick"

SUITE_FLAG, LIMIT_FLAG = "--suite", "--limit-s"


def checks_of(spec: JobSpec, suite: str, *, workers: int | None = None, limit_s: float | None = None) -> JobSpec:
    """Return the job `spec` with the checks in place of its script. `workers`: devices tested per node, by default one
    per rank of the job; 0: all GPUs of the node. `limit_s` limits the time of every test."""
    args = [SUITE_FLAG, suite, "--workers", str(spec.nproc_per_node if workers is None else workers)]
    if limit_s is not None:
        args += [LIMIT_FLAG, f"{limit_s:g}"]
    # Not in the job's directory: a test must be able to report that it is missing.
    return msgspec.structs.replace(
        spec, script=PROGRAM, is_module=True, args=tuple(args), nproc_per_node=1, mesh=None, start="fork", cwd="/"
    )


def are_checks(spec: JobSpec) -> bool:
    return spec.is_module and spec.script == PROGRAM


def time_limit_s(checks: JobSpec) -> float:
    """Return the time limit of a run of checks in seconds, counted from the start of its ranks. Raises ValueError if
    the suite is unknown or the limit is no number."""
    given = dict(zip(checks.args, checks.args[1:], strict=False))
    limit_s = given.get(LIMIT_FLAG)
    return deadline_s(given.get(SUITE_FLAG, DEFAULT_SUITE), checks.nnodes, float(limit_s) if limit_s else None)
