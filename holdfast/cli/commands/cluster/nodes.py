"""`holdfast nodes`: the inventory. Its subcommands change it, by asking the standby service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from holdfast.cli.commands.cluster.node_history import show
from holdfast.cli.connect.addresses import both_urls, reader_url
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.ask import asked_by, require
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.connect_options import cluster_options, reading_options
from holdfast.cli.connect.database import read_rows
from holdfast.cli.connect.directory import cluster_errors, directory_option
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import print_rows
from holdfast.embedded import control
from holdfast.embedded.layout import ClusterLayout
from holdfast.fresh_ids import uuid7
from holdfast.requests import STANDBY_REQUESTS, ReleaseNode

_NODES = """
with admission as (
    select distinct on (node) node, change, by from historian.credential_changes
    where node is not null order by node, at desc)
select key as node, state, job, epoch, blocked_until,
       case when change = 'revoked' then concat_ws(' by ', 'revoked', by) else reason end as reason, updated_at
from standby.nodes left join admission on node = key order by key
"""
_BLOCKED = "select key from standby.nodes where blocked_until is not null order by key"


class NodesGroup(click.Group):
    """A group whose first argument may also be a node: `holdfast nodes node-3` is `holdfast nodes show node-3`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_node = args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["show", *args] if is_node else args)


@click.group(cls=NodesGroup, invoke_without_command=True)
@reading_options
@click.pass_context
def nodes(context: click.Context, directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the nodes: state, job, and the reason for and end of a block. With NODE: its history.

    \b
        holdfast nodes
        holdfast nodes node-3
        holdfast nodes release node-3
    """
    if context.invoked_subcommand is not None:
        if database_url:
            command = context.invoked_subcommand
            raise click.UsageError(
                f"--database-url before `{command}` applies to the list only: give it after `{command}`"
            )
        return
    rows = read_rows(reader_url(directory, database_url), _NODES)
    columns = {"NODE": "node", "STATE": "state", "JOB": "job", "EPOCH": "epoch", "BLOCKED UNTIL": "blocked_until"}
    empty = "no nodes yet: a node registers when its agent starts"
    print_rows(rows, columns | {"REASON": "reason"}, as_json=as_json, empty=empty)


nodes.add_command(show)


@nodes.command()
@click.argument("node", required=False)
@click.option("--all", "every", is_flag=True, help="All nodes on the blocklist.")
@cluster_options
def release(node: str | None, every: bool, directory: Path, nats_url: str | None, database_url: str | None) -> None:
    """Take NODE off the blocklist. It becomes a standby if its agent reports and its self-check has passed.

    Otherwise the message names what is left to do: after a fault in the kernel's log (an Xid 79, for example) the
    agent must be restarted once the machine is repaired.
    """
    if (node is None) is not every:
        raise click.UsageError("give one NODE, or --all")
    if node is not None:
        require_name(node, "node name")
        asyncio.run(_release([node], find_nats_url(directory, nats_url)))
        return
    bus, database = both_urls(directory, nats_url, database_url)
    blocked = [row["key"] for row in read_rows(database, _BLOCKED)]
    if not blocked:
        click.echo("no node is on the blocklist")
    asyncio.run(_release(blocked, bus))


async def _release(names: list[str], url: str) -> None:
    async with connected(url, "nodes release") as bus:
        for node in names:
            request = ReleaseNode(id=uuid7(), asked_by=asked_by(), node=node)
            answer = await require(bus, request, STANDBY_REQUESTS, "standby service")
            click.echo(answer.message or f"{node} is off the blocklist; `holdfast nodes` shows its state")


@nodes.command()
@click.argument("node")
@directory_option
def poweroff(node: str, directory: Path) -> None:
    """Power NODE of the cluster on this machine off: SIGKILL to its agent and ranks. For drills."""
    with cluster_errors():
        reply = control.ask(ClusterLayout(directory), control.PowerOff(node=node))
    click.echo(f"{node} is off: {reply.killed} processes killed; `holdfast nodes poweron {node}` starts it again")


@nodes.command()
@click.argument("node")
@directory_option
def poweron(node: str, directory: Path) -> None:
    """Power NODE of the cluster on this machine on again."""
    with cluster_errors():
        control.ask(ClusterLayout(directory), control.PowerOn(node=node))
    click.echo(f"{node} is on; if it was evicted meanwhile, `holdfast nodes release {node}` takes it off the blocklist")


@nodes.command()
@directory_option
def add(directory: Path) -> None:
    """Add a node to the cluster on this machine."""
    with cluster_errors():
        reply = control.ask(ClusterLayout(directory), control.AddNode())
    click.echo(f"{reply.node} has joined")
