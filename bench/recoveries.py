"""Shared parts of benchmarks that break a running job and measure its recovery: cluster, rounds, figures, tables."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import machine
from report import median, rounded, table, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster

from holdfast.faults.requirements import Requirement, lacking

NODES = 3
"""Two for the job, and one stands by."""


class Recovery(Protocol):
    """Result of a round: seconds since the fault, and the decision."""

    @property
    def noticed_s(self) -> float: ...
    @property
    def decided_s(self) -> float: ...
    @property
    def trains_s(self) -> float: ...
    @property
    def decision(self) -> str: ...


R = TypeVar("R", bound=Recovery)


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that say how often."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="once each")
    made.add_argument("--rounds", type=int)
    return made


def times_asked(args: argparse.Namespace) -> int:
    """Return the number of rounds of each case."""
    return args.rounds or (1 if args.quick else 3)


@contextmanager
def drilled_cluster(
    name: str,
    environment: dict[str, str] | None = None,
    before: Callable[[Cluster], object] = lambda made: None,
    *,
    apart: bool = True,
) -> Iterator[Cluster]:
    """A cluster to break things on. On errors its logs stay.

    `apart`: nodes have networks and mounts of their own, where that can be.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))
    running = Cluster(directory / "cluster", environment)
    try:
        before(running)
        running.up(NODES, namespaces=apart and not lacking(Requirement.LINKS) and not lacking(Requirement.MOUNT))
        yield running
    except BaseException:
        tell(f"logs are kept in {directory}")
        raise
    finally:
        for job in running.jobs:
            job.leave()
        running.close()
        running.command("inject", "--undo", check=False)
        running.command("down", check=False)
    shutil.rmtree(directory)


def rounds(
    cluster: Cluster, name: str, times: int, once: Callable[[], R], told: Callable[[R], str]
) -> tuple[list[R], str]:
    """Return the results of each case, and why it ended early."""
    came: list[R] = []
    for number in range(times):
        try:
            cluster.make_whole()
            came.append(one := once())
        except AssertionError as error:
            return came, str(error).splitlines()[0]
        finally:
            cluster.command("inject", "--undo", check=False)
        tell(f"{name} [{number + 1}/{times}]: {told(one)} (load {machine.load()})")
    return came, ""


def seconds_of(came: Sequence[Recovery]) -> dict[str, Any]:
    """The figures that every row has."""
    return {
        "rounds": len(came),
        "noticed_s": rounded(median([one.noticed_s for one in came])),
        "decided_s": rounded(median([one.decided_s for one in came])),
        "trains_s": rounded(median([one.trains_s for one in came])),
        "trains_s_max": rounded(max((one.trains_s for one in came), default=None)),
        "decision": ", ".join(sorted({one.decision for one in came})),
    }


def show(rows: Sequence[Mapping[str, Any]], shown: Mapping[str, str], named_by: Sequence[str]) -> None:
    """Print what was tried, and then what was not, or ended early. `shown`: heads by column."""
    table([*shown.values()], [[row[name] for name in shown] for row in rows if row["rounds"]])
    if left := [[*(row[name] for name in named_by), row["not_carried_out"]] for row in rows if row["not_carried_out"]]:
        print()
        table([*(shown[name] for name in named_by), "not carried out, or ended early"], left)
    print()
