"""`holdfast config`."""

from __future__ import annotations

import os

import click
import msgspec

from holdfast import config as settings
from holdfast.cli.tables import render
from holdfast.timeouts import Timeouts


@click.command()
@click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="TOML file (default: holdfast.toml if there is one)."
)
@click.option("--step-s", type=float, help="Show the limits for a job whose step takes this many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(file: str | None, step_s: float | None, as_json: bool) -> None:
    """Show every setting, its value and where it came from, and the limits that derive from them.

    A wrong hierarchy (a node counted as lost before it could miss two heartbeats, say) is refused with the reason.
    """
    try:
        read, listed = settings.load(os.environ, file=file)
    except settings.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
    derived = derived_limits(read.timeouts, step_s)
    if as_json:
        click.echo(msgspec.json.encode({"settings": listed, "derived": derived}).decode())
        return
    click.echo(render(["setting", "value", "from"], [[row.key, _masked(row.value), row.origin] for row in listed]))
    click.echo()
    click.echo(
        render(["limit", "seconds", "because"], [[row["limit"], row["seconds"], row["because"]] for row in derived])
    )


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
