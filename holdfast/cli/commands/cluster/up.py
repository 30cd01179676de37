"""`holdfast up`: start the embedded cluster."""

import os
import sys
from pathlib import Path

import click

from holdfast.cli.connect.directory import as_typed, cluster_errors, new_directory_option
from holdfast.cli.values import FilePath, NonEmptyText, WholeNumber
from holdfast.embedded.layout import ClusterInfo, ClusterLayout

_PORT = WholeNumber(1, 65_535)


@click.command()
@click.option(
    "--nodes",
    type=WholeNumber(1, 1_000),
    help="Number of nodes, standbys included. [default: 4, or the number of an existing cluster]",
)
@new_directory_option
@click.option("--postgres-port", type=_PORT, help="Port for PostgreSQL. [default: a free one, the same every time]")
@click.option("--nats-port", type=_PORT, help="Port for NATS. [default: a free one, the same every time]")
@click.option(
    "--config", "file", type=FilePath(dir_okay=False), help="TOML file (default: holdfast.toml if there is one here)."
)
@click.option(
    "--run-as",
    type=NonEmptyText(),
    metavar="auto|own|agent|USER",
    help="User of ranks, where this is root. auto: a user of the job's own, or this one if files are closed to that, "
    "which `holdfast run` reports. own: never this one. [default: the setting [jobs] run_as, auto]",
)
@click.option(
    "--allow-faults", is_flag=True, help="Allow `holdfast inject` to break things in this cluster, until it ends."
)
@click.option(
    "--namespaces",
    is_flag=True,
    help="Give each node a separate network, for drills that pull, slow down or cut links. Needs root.",
)
@click.option(
    "--new-passwords",
    is_flag=True,
    help="Replace the passwords of all users of the bus and of the database's roles, and the keys that sign orders; "
    "who knew one is let in no more.",
)
@click.option("--detach", "-d", is_flag=True, help="Run in the background.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="With --detach: return when the whole cluster is ready, or immediately.",
)
def up(
    nodes: int | None,
    directory: Path,
    postgres_port: int | None,
    nats_port: int | None,
    file: str | None,
    run_as: str | None,
    allow_faults: bool,
    namespaces: bool,
    new_passwords: bool,
    detach: bool,
    wait: bool,
) -> None:
    """Start a cluster on this machine: PostgreSQL, NATS, every service, and one agent per node.

    All state lies in one directory; starting there again resumes where the cluster stopped. In the foreground, Ctrl-C
    stops the cluster and keeps its data; a second Ctrl-C does not wait. A process that dies is restarted.

    \b
    holdfast up                     4 nodes, state in .holdfast
    holdfast up --nodes 5 -d        5 nodes, in the background; `holdfast down` stops it
    holdfast up --dir /data/lab     a second cluster beside the first
    holdfast up --allow-faults      a cluster for drills: see `holdfast inject --list`
    holdfast up --run-as own        as root: no job's script runs as root

    Exit codes: 0 after an orderly stop, or once a detached cluster is ready; 1 if it could not be started.
    """
    # Imported here, so that `holdfast --help` needs neither the database library nor the migrations.
    from holdfast.embedded.configuration import RUN_AS_VARIABLE, find_configuration
    from holdfast.embedded.launch import run_detached, run_foreground
    from holdfast.embedded.options import ClusterOptions
    from holdfast.embedded.services import cluster_plan

    layout = ClusterLayout(directory)
    options = ClusterOptions(
        nodes=nodes,
        postgres_port=postgres_port,
        nats_port=nats_port,
        allow_faults=allow_faults,
        namespaces=namespaces,
        new_passwords=new_passwords,
    )
    with cluster_errors():
        layout.refuse_foreign()
        if run_as is not None:
            # Agents inherit it.
            os.environ[RUN_AS_VARIABLE] = run_as
        configuration = find_configuration(os.environ, file)
        if configuration.file is not None:
            _print_line(f"configuration from {configuration.file}")
        plan = cluster_plan(configuration)
        if detach:
            run_detached(layout, plan, options, _print_line, wait=wait)
            if wait:
                _print_next_steps(layout, layout.info(), end=as_typed("down", layout.root))
            else:
                click.echo(f"Starting in the background; see `{as_typed('status', layout.root)}`.")
        else:
            run_foreground(
                layout, plan, options, _print_line, lambda info: _print_next_steps(layout, info, end="Ctrl-C")
            )


def _print_line(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


def _print_next_steps(layout: ClusterLayout, info: ClusterInfo, *, end: str) -> None:
    count = len(info.nodes)
    # One stays free, to replace a node that fails.
    nnodes = max(1, count - 1)
    kept = "" if count == 1 else " (one node stays free, as standby)"
    click.echo(
        f"\nHoldfast is up with {count} node{'' if count == 1 else 's'}.\n"
        f"  run a job     {as_typed('run', layout.root)} --nnodes {nnodes} --nproc-per-node 1 train.py{kept}\n"
        f"  show it       {as_typed('status', layout.root)}\n"
        f"  stop it       {end}\n"
    )
    if any(layout.faults.glob("*.json")):
        click.echo(
            f"Faults of an earlier drill are still active: undo them with `{as_typed('inject --undo', layout.root)}`."
        )
    sys.stdout.flush()
