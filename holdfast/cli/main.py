"""`holdfast`: the command line. Each command is a file of its own name below `commands/`."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import click
import structlog

from holdfast.exit_codes import INTERRUPTED

COMMANDS = {
    "cluster": {
        "up": "Start a whole cluster on this machine.",
        "down": "Stop the cluster on this machine.",
        "status": "Show the cluster: its processes, nodes, jobs and dead letters.",
        "nodes": "List nodes; release one from the blocklist.",
        "logs": "Show the logs of services, agents and ranks.",
        "config": "Show every setting and where it came from.",
        "ping": "Ask one process whether it is ready, for health checks.",
        "migrate": "Bring a database to this version's schema.",
        "inject": "Break something on purpose, for drills.",
    },
    "jobs": {
        "run": "Run a training script under Holdfast, as torchrun would.",
        "attach": "Follow a job that runs: what `run` shows, and its exit code.",
        "jobs": "List jobs; show one with its ranks.",
        "stop": "Stop a job for good.",
        "update": "Bring new code into a job while it runs.",
        "rollback": "Go back to an earlier version of a job's code.",
        "versions": "List, compare and export the versions of a job's code.",
        "ckpt": "List, verify, export and import checkpoints.",
    },
    "history": {
        "incidents": "List incidents.",
        "show": "Show one incident: its timeline, decisions and evidence.",
        "explain": "Explain an incident: each decision, its evidence, what would have come next.",
        "breaker": "Show or reset the circuit breakers that end evictions.",
        "sql": "Query the recorded history with SQL.",
    },
    "diagnosis": {
        "hang": "Trace a job's processes now; say who stands where, and who holds it up.",
        "slow": "Say how a job's ranks spend their time, and who makes it slow.",
        "telemetry": "Learn what healthy training looks like from outside.",
        "diagnose": "Test nodes that no job uses; say which are at fault.",
        "inspect": "Look at this machine: network, GPUs, kernel log, disks, mounts and more.",
        "xid": "Explain Xids and other lines of a kernel's log.",
        "classify": "Tell from logs and exit codes what a crash was, and which rank failed first.",
        "analyze": "Tell from dumps who holds a job up, or what makes it slow.",
    },
}
"""The sections of `holdfast --help`: each is a folder of `commands/`, each command a file in it.

A command is loaded when it is used: `holdfast --help` imports none of them."""
_FOLDERS = {name: folder for folder, commands in COMMANDS.items() for name in commands}


class _OnDemand(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_FOLDERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        folder = _FOLDERS.get(cmd_name)
        if folder is None:
            return None
        command = getattr(importlib.import_module(f"holdfast.cli.commands.{folder}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Click's answer to one that a command does not handle is 1, as to an error.
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _FOLDERS))
        for folder, commands in COMMANDS.items():
            with formatter.section(folder.capitalize()):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=_OnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
def main() -> None:
    """Keeps large training jobs running: notices failures, decides, recovers, and writes down every step.

    \b
    Try it on one machine:
        holdfast up --detach
        holdfast run --nnodes 2 --nproc-per-node 2 train.py
        holdfast status
        holdfast incidents
        holdfast down
    """
    # What a command has to say it says itself; from the libraries below only trouble is worth a line.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
