"""Entry point of a run of checks: `python -m holdfast_checks --suite NAME`, in the environment of a rank.

One rank of each node checks all its devices; the others exit at once. The exit code is 0 whatever is found: results go
to reports and to stdout. Only results that cannot be reported give an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import xxhash

from holdfast.engines.checks.checks_program import DEFAULT_SUITE, LIMIT_FLAG, SCRATCH_PREFIX, SUITE_FLAG
from holdfast.engines.checks.suites import SUITES
from holdfast.node.trees import remove_tree
from holdfast.trainer.report import REPORTS_VARIABLE
from holdfast_checks.devices import gpus
from holdfast_checks.driver import Driver
from holdfast_checks.reporter import Reporter
from holdfast_checks.result import WorkerContext

CPU_WORKERS = 2
SHARED_MEMORY = Path("/dev/shm")


class NotReported(OSError):
    """Results are in this rank's output only: reports cannot be written to the node's disk."""


def main(argv: list[str] | None = None) -> None:
    """Run the checks of one node; ranks other than local rank 0 return at once."""
    options = _parser().parse_args(argv)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    with _scratch() as scratch:
        context = _context(options, scratch)
        print(f"checks of {context.node}: suite {options.suite}, {context.workers} workers", flush=True)
        reporter = Reporter(context)
        try:
            Driver(context, options.suite, options.limit_s, reporter.take).run()
        except BaseException:
            reporter.publish_held()
            raise
        if reporter.errors:
            raise NotReported(f"{len(reporter.errors)} results could not be reported: {reporter.errors[0]}")


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """Yield an emptied directory in memory for process groups: a hanging or full disk would fail other tests too."""
    whose = xxhash.xxh3_64_hexdigest((_node_directory() or str(os.getpid())).encode())
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for left in memory.glob(f"{SCRATCH_PREFIX}{whose}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid():
                remove_tree(left)
    # No other user knows the name: one that had made it first would have this node fail its checks.
    folder = tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{whose}-", dir=memory)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_tree(Path(folder))


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast_checks")
    parser.add_argument(SUITE_FLAG, choices=tuple(SUITES), default=DEFAULT_SUITE)
    parser.add_argument("--workers", type=int, default=0, help="devices to test; 0: all GPUs, or two CPU workers")
    parser.add_argument(LIMIT_FLAG, type=float, help="time limit of every test in seconds")
    parser.add_argument("--burn-s", type=float, default=0.1, help="seconds for which GEMM keeps each device busy")
    return parser


if __name__ == "__main__":
    main()
