"""`python -m holdfast_agent`: the daemon on every node."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.bus import Bus
from holdfast.bus.nats import connect
from holdfast.daemon import process
from holdfast.daemon.orders.order_keys import keys_of
from holdfast.daemon.process import Daemon
from holdfast.daemon.ready import announce_ready
from holdfast.ids import checked_name
from holdfast.node.users.user_rights import JobUserRefused, find_run_as
from holdfast_agent.files.directories import Directories
from holdfast_agent.service import Agent


def main() -> None:
    """Run the agent; does not return."""
    process.run(
        "holdfast_agent",
        _run,
        description="Runs the ranks of this node and reports what happens to them.",
        add_flags=_add_flags,
        needs_database=False,
    )


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", required=True, type=lambda name: checked_name(name, "node"), help="this node's name")
    parser.add_argument("--state-dir", required=True, type=Path, help="directory for logs and the agent's state")
    parser.add_argument("--address", default="127.0.0.1", help="address at which other nodes reach this one")
    parser.add_argument(
        "--run-as", metavar="auto|own|agent|USER", help="user of ranks, instead of the setting [jobs] run_as"
    )


async def _run(daemon: Daemon) -> None:
    keys = keys_of(daemon)
    directory: Path = daemon.flags.state_dir
    directory.mkdir(parents=True, exist_ok=True)
    try:
        directories = Directories(directory, find_run_as(daemon.flags.run_as or daemon.settings.jobs.run_as))
    except JobUserRefused as error:
        raise SystemExit(str(error)) from error
    # The lock is held until the process exits.
    directories.lock()
    directories.prepare()
    directories.write_pid()

    async def bus() -> Bus:
        name, network = f"agent-{daemon.flags.node}", daemon.settings.network
        return await connect(daemon.nats_url, name, network=network, makes_streams=False)

    agent = Agent(
        daemon.flags.node,
        directories,
        bus,
        keys,
        address=daemon.flags.address,
        timeouts=daemon.settings.timeouts,
        retention=daemon.settings.retention,
        checkpoint=daemon.settings.checkpoint,
        inspections=daemon.settings.inspections,
        signals=daemon.settings.signals,
        telemetry=daemon.settings.telemetry,
        network=daemon.settings.network,
        jobs=daemon.settings.jobs,
        on_ready=announce_ready,
    )
    await agent.run()
