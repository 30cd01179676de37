"""A run of checks as what a node is ordered to run: one process, which starts a worker for each device. Pure."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import deadline_s
from holdfast.events.parts.job import JobSpec

PROGRAM = "holdfast_checks"
"""The module that ranks of checks run."""

DEFAULT_SUITE = "quick"

SUITE_FLAG, LIMIT_FLAG = "--suite", "--limit-s"


def checks_of(spec: JobSpec, suite: str, *, workers: int | None = None, limit_s: float | None = None) -> JobSpec:
    """The job `spec` with the checks in place of its script.

    `workers` is how many devices each node is tested with, by default one for each rank of the job; 0: as many as the
    node has GPUs. `limit_s` bounds the time of every test.
    """
    args = [SUITE_FLAG, suite, "--workers", str(spec.nproc_per_node if workers is None else workers)]
    if limit_s is not None:
        args += [LIMIT_FLAG, f"{limit_s:g}"]
    # Not where the job works: a directory that is gone shall be found by a test.
    return msgspec.structs.replace(
        spec, script=PROGRAM, is_module=True, args=tuple(args), nproc_per_node=1, mesh=None, start="fork", cwd="/"
    )


def are_checks(spec: JobSpec) -> bool:
    """Whether this job is a run of checks and trains nothing."""
    return spec.is_module and spec.script == PROGRAM


def time_limit_s(checks: JobSpec) -> float:
    """How long a run of checks may take from the moment when its ranks run.

    Raises:
        ValueError: it names no suite that there is, or a limit that is no number.
    """
    given = dict(zip(checks.args, checks.args[1:], strict=False))
    limit_s = given.get(LIMIT_FLAG)
    return deadline_s(given.get(SUITE_FLAG, DEFAULT_SUITE), checks.nnodes, float(limit_s) if limit_s else None)
