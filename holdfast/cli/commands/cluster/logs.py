"""`holdfast logs`: the logs of the embedded cluster's processes and of its ranks."""

import os
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

from holdfast.cli.connect.directory import cluster_errors, directory_option, is_named
from holdfast.cli.connect.own_cluster import RUNS
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import printable
from holdfast.cli.values import FilePath, WholeNumber
from holdfast.embedded.errors import EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterLayout
from holdfast.embedded.processes.logfile import tail

_LOOK_EVERY_S = 0.2

_ELSEWHERE = (
    " In a cluster elsewhere, read a service's log where it runs, and a rank's on its node (`holdfast jobs JOB`), in "
    "logs/JOB/rank-N.out and .err below the agent's --state-dir; or name a directory with those of all nodes by "
    "--node-logs."
)


@click.command()
@click.argument("service", metavar="[SERVICE|JOB]", required=False)
@click.option("--rank", type=WholeNumber(min=0), help="With a JOB: only this rank.")
@click.option("--checks", is_flag=True, help="With a JOB: the output of its stop-time checks.")
@directory_option
@click.option(
    "--node-logs",
    type=FilePath(file_okay=False, exists=True, path_type=Path),
    envvar="HOLDFAST_NODE_LOGS",
    show_envvar=True,
    help="In a cluster elsewhere: a directory that has each node's logs as NODE/logs, for example mounted from there.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=WholeNumber(min=0), default=50, show_default=True, help="Number of last lines to print."
)
def logs(
    service: str | None,
    rank: int | None,
    checks: bool,
    directory: Path,
    node_logs: Path | None,
    follow: bool,
    lines: int,
) -> None:
    """Print the end of the log of one process or of all processes, or the output of a job's ranks.

    \b
        holdfast logs controller -f
        holdfast logs llama-7 --rank 3 -n 200

    SERVICE is a name that `holdfast status` shows (postgres, nats, controller, node-0, ...), or supervisor. With --rank
    or --checks the name is a JOB's. Nodes keep the output of their last jobs ([retention] jobs_on_node_max). That of a
    job with a cluster for itself stays where it was started.
    """
    if (rank is not None or checks) and service is None:
        raise click.UsageError(f"{'--checks' if checks else '--rank'} needs the name of a JOB")
    with cluster_errors():
        own = _own_cluster(directory, service)
        files = _files(_sources(directory, node_logs) if own is None else _of_cluster(own), service, rank, checks)
        prefixes = _prefixes(list(files))
        followers = {}
        for name, file in files.items():
            size = file.stat().st_size
            for line in tail(file, lines, size):
                click.echo(prefixes[name] + printable(line, keep="\t"))
            if follow:
                followers[name] = Follower(file, size)
    try:
        while followers:
            for name, follower in followers.items():
                for line in follower.read():
                    click.echo(prefixes[name] + printable(line, keep="\t"))
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        return


class Follower:
    """Whole new lines of a file after a position, across its rotation."""

    def __init__(self, file: Path, position: int) -> None:
        self._path = file
        self._file: BinaryIO = open(file, "rb")  # noqa: SIM115 - open for as long as the command runs
        self._file.seek(position)
        self._begun = b""

    def read(self) -> list[str]:
        data = self._begun + self._file.read()
        if self._rotated():
            data += self._file.read()  # Lines written between the read and the rotation are still in the old file.
            self._file.close()
            self._file = open(self._path, "rb")  # noqa: SIM115
            data += self._file.read()
        *whole, self._begun = data.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _rotated(self) -> bool:
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False  # In the middle of a rotation.


class Sources(NamedTuple):
    """Places of a cluster's logs."""

    root: Path
    """Directory of the cluster."""
    nodes: Path
    """Directory with the logs of ranks, by node."""
    processes: dict[str, Path]
    """Logs of the processes of an embedded cluster."""


def _own_cluster(directory: Path, job: str | None) -> ClusterLayout | None:
    """Return what is left of the cluster that a job had for itself; None if it had none, or another is named."""
    if job is None or os.sep in job or is_named():
        return None
    layout = ClusterLayout(directory / RUNS / job)
    return layout if layout.nodes.is_dir() else None


def _sources(directory: Path, node_logs: Path | None) -> Sources:
    if node_logs is not None and not is_named():
        return Sources(node_logs, node_logs, {})
    layout = ClusterLayout(directory)
    try:
        layout.info()
    except NoCluster as error:
        raise EmbeddedError(f"{error}{_ELSEWHERE}") from error
    return _of_cluster(layout)


def _of_cluster(layout: ClusterLayout) -> Sources:
    return Sources(layout.root, layout.nodes, {file.stem: file for file in sorted(layout.logs.glob("*.log"))})


def _files(sources: Sources, name: str | None, rank: int | None, checks: bool = False) -> dict[str, Path]:
    known = sources.processes
    if name is None and known:
        return known
    if name is not None and rank is None and not checks and name in known:
        return {name: known[name]}
    if name is not None and (ranks := _of_ranks(sources.nodes, require_name(name, "job name"), rank, checks)):
        return ranks
    what = repr(name) if rank is None else f"rank {rank} of job {name!r}"
    what = f"checks of {what}" if checks else what
    jobs = ", ".join(sorted({folder.name for folder in sources.nodes.glob("*/logs/*") if folder.is_dir()})) or "none"
    if rank is not None and name is not None and (others := _of_ranks(sources.nodes, name, None, checks)):
        printed = sorted({int(file.stem.removeprefix("rank-")) for file in others.values()})
        raise EmbeddedError(f"{what} has printed nothing; there is output of rank {', '.join(map(str, printed))}.")
    if not known:
        missing = "" if name is None else f"there is no log of {what} in {sources.root}. "
        raise EmbeddedError(
            f"{missing}Give the name of a JOB; logs exist of: {jobs}. Read those of services and agents where they "
            "run, for example with `docker compose logs controller`."
        )
    raise EmbeddedError(
        f"there is no log of {what} in {sources.root}; logs exist of {', '.join(known)}, and of jobs: {jobs}."
    )


def _of_ranks(nodes: Path, job: str, rank: int | None, checks: bool) -> dict[str, Path]:
    """Return the output files of a job's ranks, on every node where they ran, by the name to show. Runs of checks lie
    in a folder below; for a job that only ran checks, they are returned in any case.
    """
    named = f"rank-{'*' if rank is None else rank}"
    folders = ("checks-*/",) if checks else ("", "checks-*/")
    for folder in folders:
        found = [file for end in ("out", "err") for file in nodes.glob(f"*/logs/{job}/{folder}{named}.{end}")]
        found.sort(key=lambda file: (int(file.stem.removeprefix("rank-")), file.stat().st_mtime))
        if found:
            above = 3 if folder else 2
            return {f"{file.parents[above].name} {file.relative_to(file.parents[above - 2])}": file for file in found}
    return {}


def _prefixes(names: list[str]) -> dict[str, str]:
    width = max(map(len, names), default=0)
    return {name: "" if len(names) == 1 else f"{name.ljust(width)} | " for name in names}
