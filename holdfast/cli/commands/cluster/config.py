"""`holdfast config`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.directory import cluster_errors, directory_option, is_named
from holdfast.cli.output.tables import render
from holdfast.embedded.control import is_running
from holdfast.embedded.layout import ClusterLayout
from holdfast.settings import load as settings
from holdfast.settings.timeouts import Timeouts


@click.command()
@directory_option
@click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="Those of this TOML file, whatever a cluster runs with."
)
@click.option("--step-s", type=float, help="Show the limits for a job whose step takes this many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(directory: Path, file: str | None, step_s: float | None, as_json: bool) -> None:
    """Show every setting, its value and where it came from, and the limits that derive from them.

    Of a cluster that runs here, or whose --dir is named, those that it was started with. Where addresses of a cluster
    elsewhere are set, or no cluster is here, and with --config, those that a process started here would have: of flags,
    environment, a file named by HOLDFAST_CONFIG, holdfast.toml.

    A wrong hierarchy (a node counted as lost before it could miss two heartbeats, say) is refused with the reason.
    """
    layout = ClusterLayout(directory)
    of_cluster = file is None and (is_named() or (_runs(layout) and both_elsewhere(None, None) is None))
    try:
        listed = _of(layout) if of_cluster else settings.load(os.environ, file=file)[1]
        derived = derived_limits(settings.timeouts_of(listed), step_s)
    except settings.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode({"settings": listed, "derived": derived}).decode())
        return
    if of_cluster:
        click.echo(f"of the cluster in {layout.root}")
    click.echo(render(["setting", "value", "from"], [[row.key, _masked(row.value), row.origin] for row in listed]))
    click.echo()
    click.echo(
        render(["limit", "seconds", "because"], [[row["limit"], row["seconds"], row["because"]] for row in derived])
    )


def _runs(layout: ClusterLayout) -> bool:
    return layout.cluster_file.exists() and is_running(layout)


def _of(layout: ClusterLayout) -> list[settings.Setting]:
    with cluster_errors():
        listed = list(layout.info().settings)
    if not listed:
        raise click.ClickException(f"the cluster in {layout.root} has not kept its settings: start it again")
    return listed


def derived_limits(timeouts: Timeouts, step_s: float | None) -> list[dict[str, str]]:
    """The limits that follow from the settings, in words."""
    known = f"a step of {step_s:g} s" if step_s else "no step time known yet"
    return [
        {
            "limit": "first step of a generation",
            "seconds": f"{timeouts.first_step_limit_s(step_s):g}",
            "because": f"min(first_step_s, first_step_min_s + step_multiple x step) with {known}",
        },
        {
            "limit": "node counted as lost",
            "seconds": f"{timeouts.node_lost_s:g}",
            "because": f"{timeouts.node_lost_s / timeouts.heartbeat_s:.0f} heartbeats missed",
        },
        {
            "limit": "rank stopped at the latest",
            "seconds": f"{timeouts.stop_grace_s:g}",
            "because": "SIGTERM, then SIGKILL after stop_grace_s",
        },
    ]


def _masked(value: str) -> str:
    """An address without its password."""
    head, at, tail = value.rpartition("@")
    if not at:
        return value
    scheme, _, credentials = head.rpartition("//")
    return f"{scheme}//{credentials.split(':')[0]}:***@{tail}"
