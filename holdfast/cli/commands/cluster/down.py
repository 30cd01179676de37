"""`holdfast down`: stop the embedded cluster."""

import os
import select
from pathlib import Path

import click

from holdfast.cli.connect.directory import cluster_errors, directory_option
from holdfast.cli.values import FiniteNumber
from holdfast.embedded import fabric
from holdfast.embedded.control import Stop, ask
from holdfast.embedded.errors import EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.processes.leftovers import clear_node, end_leftovers


@click.command()
@directory_option
@click.option("--force", is_flag=True, help="Kill everything now; PostgreSQL recovers at the next start.")
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteNumber(min=0, max=86_400),
    help="Seconds to wait. [default: 90, plus twice the cluster's stop_grace_s]",
)
def down(directory: Path, force: bool, timeout_s: float | None) -> None:
    """Stop a cluster that `holdfast up` started. Its data is kept, and the next `up` resumes from there.

    \b
        holdfast down
        holdfast down --dir /data/lab --force

    Ranks are stopped first, then the services, NATS and PostgreSQL. Jobs do not end: they resume at the next `up`. If
    the supervisor is dead, the processes that it left are stopped.

    Exit codes: 0 if the cluster has stopped or did not run, 1 if it has not stopped in time.
    """
    with cluster_errors():
        layout = ClusterLayout(directory)
        info = layout.info()
        supervisor = None if info.pid is None else _open(info.pid)
        try:
            ask(layout, Stop(force=force))
        except NoCluster:
            click.echo(_stop_leftovers(layout))
            return
        if supervisor is not None:
            _wait(supervisor, layout, _patience_s(info) if timeout_s is None else timeout_s)
        click.echo(f"The cluster in {layout.root} has stopped; its data is kept.")


def _patience_s(info: ClusterInfo) -> float:
    """Return how long to wait: agents stop before services, and both wait for ranks that end slowly."""
    grace_s = next((float(row.value) for row in info.settings if row.key == "timeouts.stop_grace_s"), 0.0)
    return 90.0 + 2 * grace_s


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait(supervisor: int, layout: ClusterLayout, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(supervisor, select.POLLIN)
    if not poll.poll(timeout_s * 1000):
        raise EmbeddedError(
            f"the cluster in {layout.root} has not stopped within {timeout_s:g} s. See {layout.log('supervisor')}; "
            "`holdfast down --force` kills what is left."
        )


def _stop_leftovers(layout: ClusterLayout) -> str:
    """End what a dead supervisor left. Raises AlreadyRunning if one is alive after all and only just starting."""
    with layout.lock():
        info = layout.info()
        ended = end_leftovers(info)
        ranks = sum(clear_node(layout, node) for node in info.nodes)
        if info.fabric is not None:
            fabric.remove(info.fabric)
    if not ended and not ranks:
        return f"No cluster is running in {layout.root}."
    return (
        f"The supervisor in {layout.root} was dead; stopped what it left: "
        f"{len(ended)} children, {ranks} processes on nodes."
    )
