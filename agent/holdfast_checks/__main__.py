"""Entry point of a run of checks: `python -m holdfast_checks --suite NAME`, in the environment of a rank.

One rank of each node checks all its devices; the others exit at once. The exit code is 0 whatever is found: results go
to reports and to stdout. Only results that cannot be reported give an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import xxhash

from holdfast.engines.checks.checks_program import DEFAULT_SUITE, LIMIT_FLAG, SUITE_FLAG
from holdfast.engines.checks.suites import END, SUITES
from holdfast.node.machine import Machine
from holdfast.trainer.report import DIAGNOSTIC_RESULT, REPORTS_VARIABLE, report
from holdfast_checks.devices import gpus
from holdfast_checks.driver import Driver, ReportedResult
from holdfast_checks.result import WorkerContext
from holdfast_checks.source_version import program_of

CPU_WORKERS = 2
SHARED_MEMORY = Path("/dev/shm")


class NotReported(OSError):
    """Results are in this rank's output only: reports cannot be written to the node's disk."""


def main(argv: list[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    with _scratch() as scratch:
        context = _context(options, scratch)
        print(f"checks of {context.node}: suite {options.suite}, {context.workers} workers", flush=True)
        unreported: list[OSError] = []
        Driver(
            context, options.suite, options.limit_s, lambda result: _report_result(context, result, unreported)
        ).run()
        if unreported:
            raise NotReported(f"{len(unreported)} results could not be reported: {unreported[0]}")


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """Yield an emptied directory in memory for process groups: a hanging or full disk would fail other tests too."""
    whose = xxhash.xxh3_64_hexdigest((_node_directory() or str(os.getpid())).encode())
    folder = (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"holdfast-checks-{whose}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _context(options: argparse.Namespace, scratch: str) -> WorkerContext:
    environment = os.environ
    job, generation = environment.get("HOLDFAST_JOB", "checks"), environment.get("HOLDFAST_GENERATION", "0")
    return WorkerContext(
        run=f"{job}/{generation}",
        node=environment.get("HOLDFAST_NODE", "this node"),
        node_rank=int(environment.get("GROUP_RANK", "0")),
        nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
        workers=options.workers or gpus() or CPU_WORKERS,
        store_host=environment.get("MASTER_ADDR", ""),
        store_port=int(environment.get("MASTER_PORT", "0")),
        job_directory=environment.get("HOLDFAST_JOB_DIR", ""),
        node_directory=_node_directory(),
        scratch=scratch,
        burn_s=options.burn_s,
    )


def _node_directory() -> str:
    """Return the directory where this node's ranks write, whatever their job; "" outside of Holdfast."""
    reports = os.environ.get(REPORTS_VARIABLE, "")
    return str(Path(reports).parent) if reports else ""


def _report_result(context: WorkerContext, reported: ReportedResult, unreported: list[OSError]) -> None:
    result, stage = reported.result, reported.stage
    with_peers = f" with {', '.join(result.peers)}" if result.peers else ""
    value = f" {result.value:.4g} {result.unit}" if result.value is not None else ""
    line = f"{stage.test}{with_peers}: {result.status}{value}"
    print(" ".join(filter(None, (line, result.device and f"[{result.device}]", result.detail))), flush=True)
    try:
        report(
            DIAGNOSTIC_RESULT,
            run=context.run,
            test=stage.test,
            status=result.status,
            symptom=result.symptom,
            peers=result.peers,
            round=stage.round,
            device=result.device,
            value=result.value,
            needed=result.needed,
            unit=result.unit,
            digest=result.digest,
            hardware=result.hardware,
            program=program_of(stage.test, context.workers) if result.digest else "",
            boot_id=Machine().boot_id,
            took_s=reported.took_s,
            detail=result.detail,
            done=reported.done,
            total=reported.total,
            results=reported.earlier - len(unreported) if stage.test == END else 0,
        )
    except OSError as error:
        # The tests go on: their results are at least in the output.
        unreported.append(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast_checks")
    parser.add_argument(SUITE_FLAG, choices=tuple(SUITES), default=DEFAULT_SUITE)
    parser.add_argument("--workers", type=int, default=0, help="devices to test; 0: all GPUs, or two CPU workers")
    parser.add_argument(LIMIT_FLAG, type=float, help="time limit of every test in seconds")
    parser.add_argument("--burn-s", type=float, default=0.1, help="seconds for which GEMM keeps each device busy")
    return parser


if __name__ == "__main__":
    main()
