"""`holdfast`: the command line. Each command lies in the file of its name below `commands/`."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from typing import Any

import click
import structlog

from holdfast.cli.interrupts import raise_again
from holdfast.daemon.quick_imports import quick_imports
from holdfast.exit_codes import INTERRUPTED

COMMANDS = {
    "cluster": {
        "up": "Start a whole cluster on this machine.",
        "down": "Stop the cluster on this machine.",
        "status": "Show the cluster: its processes, nodes, jobs and dead letters.",
        "top": "Watch the cluster: jobs, nodes, incidents and complaints, each second.",
        "doctor": "Look for what is wrong with the cluster, and name cause and cure.",
        "nodes": "List nodes; release one from the blocklist.",
        "connect": "Print addresses and the reader's passwords, for tools.",
        "credentials": "List who may connect; renew passwords, revoke a node.",
        "logs": "Show the logs of services, agents and ranks.",
        "config": "Show every setting and its source.",
        "ping": "Check whether one process is ready, for health checks.",
        "inject": "Inject a fault, for drills.",
    },
    "jobs": {
        "run": "Run a training script under Holdfast, as torchrun would.",
        "attach": "Follow a running job: its output, events and exit code.",
        "jobs": "List jobs; show one with its ranks.",
        "stop": "Stop a job for good.",
        "update": "Update the code of a running job.",
        "rollback": "Return a job to an earlier version of its code.",
        "versions": "List, compare and export the versions of a job's code.",
        "ckpt": "List, verify, export and import checkpoints; show who keeps copies.",
    },
    "history": {
        "incidents": "List incidents.",
        "show": "Show one incident: its timeline, decisions and evidence.",
        "explain": "Explain an incident: each decision, its evidence, and the next step on the ladder.",
        "whatif": "Show what another policy would have decided on recorded failures.",
        "breaker": "Show or reset the circuit breakers that block evictions.",
        "sql": "Query the recorded history with SQL.",
    },
    "database": {
        "migrate": "Upgrade a database to the schema of this version.",
        "backup": "Write the database to a file.",
        "restore": "Put a backup in the place of the database.",
    },
    "diagnosis": {
        "hang": "Trace a job's processes now, and name the ranks that others wait for.",
        "slow": "Show how a job's ranks spend their time, and name the slow ones.",
        "telemetry": "Train and list models of healthy telemetry.",
        "diagnose": "Test idle nodes, and name the faulty ones.",
        "inspect": "Inspect this machine: network, GPUs, kernel log, disks, mounts and more.",
        "xid": "Explain Xids and other lines of a kernel log.",
        "classify": "Classify a crash from logs and exit codes, and name the rank that failed first.",
        "analyze": "Find the cause of a hang or slowness from dumps.",
        "simulate": "Try policies in a simulated cluster that knows who is at fault.",
    },
}
"""The sections of `holdfast --help`: each is a folder of `commands/`, each command a file in it.

A command is imported when it is used: `holdfast --help` imports none."""
_FOLDERS = {name: folder for folder, commands in COMMANDS.items() for name in commands}


_NAME_SHOWN_MAX = 200


class _OnDemand(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_FOLDERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        folder = _FOLDERS.get(cmd_name)
        if folder is None:
            return None
        with quick_imports():
            command = getattr(importlib.import_module(f"holdfast.cli.commands.{folder}.{cmd_name}"), cmd_name)
        raise_again()
        assert isinstance(command, click.Command)
        if ctx.resilient_parsing:
            # A shell asks what may come next.
            from holdfast.cli.completion import with_known_names

            with_known_names(command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)  # Click would exit with 1, as for an error.
        except OSError as error:
            if not isinstance(error.filename, str) or error.strerror is None:
                if why := _of_no_file(error):
                    raise click.ClickException(why) from error
                raise
            name = error.filename[:_NAME_SHOWN_MAX] + "..." * (len(error.filename) > _NAME_SHOWN_MAX)
            raise click.ClickException(f"{name}: {error.strerror}") from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for arg in args:
            try:
                arg.encode()
            except UnicodeEncodeError:
                shown = arg.encode(errors="surrogateescape").decode(errors="backslashreplace")
                ctx.fail(f"'{shown}' is no UTF-8, as everything that Holdfast stores must be")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _FOLDERS))
        for folder, commands in COMMANDS.items():
            with formatter.section(folder.capitalize()):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


def _of_no_file(error: OSError) -> str:
    """Return what an error means that names no file; "" if that is not known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the output cannot be written: {error.strerror}"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current directory was removed; change to another one"
    return ""


@click.group(cls=_OnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
def main() -> None:
    """Keep large training jobs running: detect failures, decide, recover, and record every step.

    \b
    Try it on one machine:
        holdfast up --detach
        holdfast run --nnodes 2 --nproc-per-node 2 train.py
        holdfast status
        holdfast incidents
        holdfast down
    """
    # Commands print their own messages; the libraries log errors only.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
