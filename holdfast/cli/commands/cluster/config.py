"""`holdfast config`."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.directory import cluster_errors, directory_option, is_named
from holdfast.cli.output.tables import json_text, render
from holdfast.cli.values import FilePath, FiniteNumber
from holdfast.embedded.control import is_running
from holdfast.embedded.layout import ClusterLayout
from holdfast.settings import load as settings
from holdfast.settings.meanings import Meaning, meanings_of
from holdfast.settings.timeouts import Timeouts

WIDTH = 100
"""Characters of a line of text."""


@click.command()
@click.argument("names", nargs=-1, metavar="[SETTING|SECTION]...")
@directory_option
@click.option(
    "--config",
    "file",
    type=FilePath(dir_okay=False),
    help="Show the settings of this TOML file instead of a cluster's.",
)
@click.option(
    "--step-s",
    type=FiniteNumber(min=0, min_open=True),
    help="Show the limits for a job whose step takes this many seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(names: tuple[str, ...], directory: Path, file: str | None, step_s: float | None, as_json: bool) -> None:
    """Show every setting with its value and source, and the limits derived from them; or what some of them mean.

    \b
        holdfast config
        holdfast config --config holdfast.toml --step-s 12
        holdfast config timeouts ladder.attempts_max

    For a cluster that runs here, or is named by --dir: the settings that it was started with. Otherwise, and with
    --config: the settings that a process started here would have, from the environment, the file in HOLDFAST_CONFIG, or
    holdfast.toml.

    Settings that contradict each other (a node lost before it could miss two heartbeats, for example) are refused with
    the reason: exit code 1.
    """
    layout = ClusterLayout(directory)
    of_cluster = file is None and (is_named() or (_runs(layout) and both_elsewhere(None, None) is None))
    try:
        listed = _of(layout) if of_cluster else settings.load(os.environ, file=file)[1]
        derived = derived_limits(settings.timeouts_of(listed), step_s)
    except settings.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
    if names:
        explained = _explained(names, listed)
        click.echo(json_text(explained) if as_json else "\n\n".join(map(_in_words, explained)))
        return
    if as_json:
        click.echo(msgspec.json.encode({"settings": listed, "derived": derived}).decode())
        return
    if of_cluster:
        click.echo(f"settings of the cluster in {layout.root}")
    click.echo(render(["setting", "value", "from"], [[row.key, _masked(row.value), row.origin] for row in listed]))
    click.echo()
    click.echo(
        render(["limit", "seconds", "because"], [[row["limit"], row["seconds"], row["because"]] for row in derived])
    )


class ExplainedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in words. `allowed`: its range or its choices, "" for any value."""

    key: str
    value: str
    origin: str
    default: str
    allowed: str
    meaning: str


def _explained(names: tuple[str, ...], listed: list[settings.Setting]) -> list[ExplainedSetting]:
    found = {row.key: row for row in listed}
    addresses = {key: Meaning(name=key, default="", allowed="", text=text) for key, text in settings.ADDRESSES.items()}
    known = addresses | {
        f"{section}.{meaning.name}": meaning
        for section, kind in settings.SECTIONS.items()
        for meaning in meanings_of(kind)
    }
    wanted = dict[str, None]()
    for name in names:
        keys = [key for key in known if name in (key, *key.split("."))]
        if not keys:
            raise click.UsageError(settings.no_such_setting(name))
        wanted |= dict.fromkeys(keys)
    return [
        ExplainedSetting(
            key=key,
            value=_masked(found[key].value) if key in found else "",
            origin=found[key].origin if key in found else "default",
            default=known[key].default,
            allowed=known[key].allowed,
            meaning=known[key].text,
        )
        for key in wanted
    ]


def _in_words(one: ExplainedSetting) -> str:
    origin = one.origin if one.origin == "default" else f"{one.origin}; default {one.default or 'none'}"
    head = f"{one.key} = {one.value or one.default or '-'} ({origin})" + (f", {one.allowed}" if one.allowed else "")
    return f"{head}\n{textwrap.fill(one.meaning, WIDTH, initial_indent='    ', subsequent_indent='    ')}"


def _runs(layout: ClusterLayout) -> bool:
    return layout.cluster_file.exists() and is_running(layout)


def _of(layout: ClusterLayout) -> list[settings.Setting]:
    with cluster_errors():
        listed = list(layout.info().settings)
    if not listed:
        raise click.ClickException(f"the cluster in {layout.root} has not recorded its settings: restart it")
    return listed


def derived_limits(timeouts: Timeouts, step_s: float | None) -> list[dict[str, str]]:
    """Return the limits that follow from settings and the step time, each in seconds with its formula."""
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
            "limit": "rank killed after",
            "seconds": f"{timeouts.stop_grace_s:g}",
            "because": "SIGTERM, then SIGKILL after stop_grace_s",
        },
        {
            "limit": "after a failure, rank killed after",
            "seconds": f"{timeouts.grace_s(is_urgent=True):g}",
            "because": "SIGTERM, then SIGKILL after failed_grace_s",
        },
    ]


def _masked(value: str) -> str:
    """Return an address without its password."""
    head, at, tail = value.rpartition("@")
    if not at:
        return value
    scheme, _, credentials = head.rpartition("//")
    return f"{scheme}//{credentials.split(':')[0]}:***@{tail}"
