"""`holdfast status`: the state of a cluster."""

import asyncio
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.connect.directory import as_typed, cluster_errors
from holdfast.cli.doctor.cluster_findings import findings_of
from holdfast.cli.doctor.finding import Finding, Severity
from holdfast.cli.doctor.reading_all import read_cluster
from holdfast.cli.doctor.whereabouts import Whereabouts
from holdfast.cli.output.overview import Overview, cluster_overview, overview_section
from holdfast.cli.output.tables import printable, render
from holdfast.embedded.control import ChildStatus, Reply, Status, ask
from holdfast.embedded.errors import NoCluster
from holdfast.embedded.layout import ClusterInfo, ClusterLayout


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `holdfast status --json`; `children` is empty while no supervisor runs."""

    directory: str
    running: bool
    ready: bool
    supervisor_pid: int | None
    nats_url: str
    nats_monitor_url: str
    nodes: list[str]
    children: list[ChildStatus]
    overview: Overview | None = None
    findings: list[Finding] = []
    """Findings of `holdfast doctor` that need no longer look."""


@click.command()
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which contains the password of the bus.")
def status(directory: Path, nats_url: str | None, database_url: str | None, as_json: bool) -> None:
    """Show a cluster: its processes, nodes by state, jobs, open incidents, and messages that could not be handled.

    \b
        holdfast status
        holdfast status --json | jq .overview.jobs

    The processes of a cluster that `holdfast up` did not start (named by --nats-url and --database-url) are not shown.

    Exit codes: 0 if everything is up, revoked nodes aside; 1 if the cluster or a part of it is not.
    """
    if elsewhere := both_elsewhere(nats_url, database_url):
        bus, database = elsewhere
        _status_elsewhere(database, bus, as_json)
    layout = ClusterLayout(directory)
    with cluster_errors():
        info = layout.info()
        try:
            reply: Reply | None = ask(layout, Status(), within_s=10.0)
        except NoCluster:
            reply = None
    overview, findings = None, list[Finding]()
    if reply is not None:
        where = Whereabouts(
            nats_url=nats_url or info.nats_url,
            database_url=database_url or info.database_urls["reader"],
            nats_monitor_url=None if nats_url else info.nats_monitor_url,
            layout=layout,
        )
        overview, findings = asyncio.run(_look(where))
    if as_json:
        click.echo(msgspec.json.encode(_as_data(layout, info, reply, overview, findings)))
    else:
        click.echo(_children_section(layout, reply))
        if overview is not None:
            click.echo("\n" + overview_section(overview))
        if findings:
            click.echo(_doctor_line(findings))
    healthy = reply is not None and reply.ready and all(child.state in ("ready", "revoked") for child in reply.children)
    sys.exit(0 if healthy else 1)


def _status_elsewhere(database_url: str, nats_url: str, as_json: bool) -> NoReturn:
    overview, findings = asyncio.run(_look(Whereabouts(nats_url=nats_url, database_url=database_url)))
    if as_json:
        click.echo(msgspec.json.encode({"overview": overview, "findings": findings}))
    else:
        click.echo(overview_section(overview))
        if findings:
            click.echo(_doctor_line(findings))
    sys.exit(1 if overview.problems else 0)


async def _look(where: Whereabouts) -> tuple[Overview, list[Finding]]:
    overview, facts = await asyncio.gather(
        cluster_overview(where.database_url, where.nats_url), read_cluster(where, listen=False)
    )
    return overview, findings_of(facts)


def _doctor_line(findings: list[Finding]) -> str:
    worst = findings[0]
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    label = "Wrong" if worst.severity is Severity.ERROR else "Warning"
    return printable(f"{label}: {worst.about}: {worst.what}{more}. `holdfast doctor` shows causes and cures")


def _as_data(
    layout: ClusterLayout, info: ClusterInfo, reply: Reply | None, overview: Overview | None, findings: list[Finding]
) -> ClusterStatus:
    return ClusterStatus(
        directory=str(layout.root),
        running=reply is not None,
        ready=reply is not None and reply.ready,
        supervisor_pid=None if reply is None else info.pid,
        nats_url=info.nats_url,
        nats_monitor_url=info.nats_monitor_url,
        nodes=info.nodes,
        children=[] if reply is None else reply.children,
        overview=overview,
        findings=findings,
    )


def _children_section(layout: ClusterLayout, reply: Reply | None) -> str:
    if reply is None:
        return f"The cluster in {layout.root} is not running. Start it with `{as_typed('up', layout.root)}`."
    rows = [
        (
            child.name,
            child.kind,
            child.state,
            child.pid,
            None if child.ready_s is None else _duration(child.ready_s),
            child.restarts,
            child.last_exit,
        )
        for child in reply.children
    ]
    table = render(["NAME", "KIND", "STATE", "PID", "UP", "RESTARTS", "LAST EXIT"], rows)
    return table if reply.ready else f"The cluster is still starting.\n{table}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours = whole // 3600
    return f"{hours} h {whole % 3600 // 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
