"""`holdfast run`: submit a job, show its output, return its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from holdfast.cli.callers_world import callers_python, ranks_environment
from holdfast.cli.code_upload import snapshot_for_script, snapshot_of
from holdfast.cli.connect.addresses import both_elsewhere, both_urls
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.connect.own_cluster import is_missing, own_cluster
from holdfast.cli.follow.lost_saves import lost_saves
from holdfast.cli.follow.training_job import follow
from holdfast.cli.hidden_arguments import hide_values
from holdfast.cli.names import require_name
from holdfast.cli.torchrun.meanings import launch_of, node_range, notices, ranks_per_node, started_elsewhere
from holdfast.cli.torchrun.options import RunCommand, flags_given, torchrun_options
from holdfast.cli.unread_input import UNREAD, is_input_waiting
from holdfast.cli.values import FilePath, NonEmptyText
from holdfast.code.snapshot import Snapshot
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import new_job_name
from holdfast.node.rank_variables import MEMORY_CHECKPOINTS, SCRIPT_LINK

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(/|$)")
"""The start of a URL as a path; it has lost a slash."""


def _as_torchrun(option: str) -> str:
    """Accept the option with underscores too, as torchrun does."""
    return option.replace("_", "-")


@click.command(
    cls=RunCommand, context_settings={"allow_interspersed_args": False, "token_normalize_func": _as_torchrun}
)
@click.option(
    "--mesh",
    type=NonEmptyText(),
    help="Parallel dimensions, outermost first, for example pp=2,dp=2,tp=2 (default: all ranks dp).",
)
@click.option(
    "--env",
    "-e",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable of the ranks, in place of what they get from this environment; without VALUE, copied"
    " from it. Repeatable.",
)
@click.option(
    "--env-file",
    "env_files",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="File of NAME=VALUE lines, for ranks too; --env goes before it. Repeatable.",
)
@click.option("--env-none", is_flag=True, help="Give ranks nothing of this environment but what is named.")
@click.option(
    "--python",
    type=NonEmptyText(),
    metavar="PATH",
    help="Python of the ranks, where a node has it. Default: that of the active virtual environment, else this"
    " command's. node: that of each node's agent.",
)
@click.option("--name", type=NonEmptyText(), help="The job's name (default: the script's name and a random part).")
@click.option("--job-dir", type=FilePath(path_type=Path), help="Directory for checkpoints; every node must reach it.")
@click.option(
    "--start",
    type=click.Choice(["fork", "exec"]),
    default="fork",
    show_default=True,
    help="fork: start ranks within milliseconds, from a process that has imported torch. exec: start a new interpreter,"
    " for scripts whose environment must take effect at import.",
)
@click.option(
    "--persist-every",
    default="",
    metavar="STEPS|TIME",
    help="How often a saved step is also written to disk in the background: 500 (steps), 10m, never. Default: the"
    " cluster's setting [checkpoint] persist_every, 10m.",
)
@click.option(
    "--memory-checkpoints",
    is_flag=True,
    help="Let the script's own checkpoints (torch.save, DCP, Lightning) go through the memory of the nodes: a save"
    " returns when it is there, and the file follows (docs/memory-checkpoints.md).",
)
@click.option(
    "--allow-scratch",
    is_flag=True,
    help="Start from scratch if all checkpoints that the job has made are lost, or if bad numbers leave none that may"
    " be restored. Without it the job ends then. It does not apply to a limit set with -e HOLDFAST_RESTORE_STEP.",
)
@click.option(
    "--data",
    multiple=True,
    type=click.Path(path_type=str),
    help="A file or directory that every node must have, such as the data set. Nodes are tested for it while the job"
    " starts (docs/warm-up.md). May be given several times.",
)
@click.option(
    "--no-warmup",
    is_flag=True,
    help="Start on nodes that are not tested beside the start.",
)
@click.option(
    "--code",
    type=NonEmptyText(),
    metavar="DIR|none",
    help="Source tree to snapshot and run, so that the code can be updated and rolled back. Default: the git work tree"
    " of SCRIPT, else this directory, unless it is large. none: run SCRIPT where it lies.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="QUANTITY=TAG",
    help="Tag of a quantity in the script's TensorBoard or W&B log, if it has an unusual name: loss, grad_norm,"
    " tokens_per_s, mfu or learning_rate. For example --tag loss=objective/total. Repeatable.",
)
@click.option(
    "--training-log",
    "training_logs",
    type=NonEmptyText(),
    multiple=True,
    metavar="GLOB",
    help="TensorBoard or W&B files to read besides those that ranks have open, relative to here. Repeatable.",
)
@click.option("--detach", "-d", is_flag=True, help="Submit and return; `holdfast attach` follows it.")
@torchrun_options
@cluster_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    /,
    mesh: str | None,
    env: tuple[str, ...],
    env_files: tuple[Path, ...],
    env_none: bool,
    python: str | None,
    name: str | None,
    job_dir: Path | None,
    start: str,
    persist_every: str,
    memory_checkpoints: bool,
    allow_scratch: bool,
    data: tuple[str, ...],
    no_warmup: bool,
    code: str | None,
    tags: tuple[str, ...],
    training_logs: tuple[str, ...],
    detach: bool,
    directory: Path,
    nats_url: str | None,
    database_url: str | None,
    script: str,
    args: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run SCRIPT ARGS... under Holdfast, as torchrun would.

    \b
        holdfast run train.py
        holdfast run --nnodes 4 --nproc-per-node 2 --mesh pp=2,dp=2,tp=2 train.py --steps 1000

    All flags of torchrun are accepted; where Holdfast does something else in their place, it prints that at the start
    (docs/torchrun.md). Without a running cluster, one is started on this machine for this run, and ends with it.

    Ranks get the environment variables that torchrun sets. Rank 0's output is shown here; the output of every rank is
    kept on its node (`holdfast logs JOB`). Ctrl-C stops the job; a second Ctrl-C leaves it to stop by itself. In a
    lasting cluster the job continues when the output is no longer read (`| head`) or the terminal is closed; `holdfast
    attach` follows it again.

    Ranks run in this directory, with the Python of the active virtual environment (else of this command) and with this
    environment, apart from what belongs to this host, session, scheduler or cluster (docs/callers-world.md). Values
    travel and are stored apart from what readers of the database, events and logs can see.

    Restarts run the code as it was when the job began: editing a file has no effect on them before `holdfast update`.
    The script keeps its own path, and finds its files as before.

    Under agents of root, ranks run as a user of the job's own, who may write to the job's directory, HOME and /tmp.
    They run as root if the script, Python or an existing job directory is closed to that user, which is reported here.
    `holdfast up --run-as` and the setting [jobs] run_as choose another user (docs/security.md).

    Exit codes: the job's; 143 if it was stopped, by Ctrl-C too; 130 after a second Ctrl-C; 141 if the output is no
    longer read; 1 if the job was not accepted.
    """
    hide_values(env)
    given = flags_given(context)
    for line in notices(given):
        click.echo(f"[holdfast] {line}", err=True)
    if is_input_waiting(sys.stdin):
        click.echo(UNREAD, err=True)
    if why := started_elsewhere(flags, os.environ):
        click.echo(f"[holdfast] {why}", err=True)
        return
    is_module = flags["module"] and not flags["run_path"]
    name = require_name(name, "job name") if name else new_job_name(script if is_module else Path(script).stem)
    launch = launch_of(flags, given, name)
    named = os.path.abspath(script)
    place, script = _found(script, is_module, launch.no_python)
    is_linked = not is_module and not launch.no_python and named != script
    job_directory = _job_directory(job_dir or directory / "jobs" / name)
    found = _code(code or ("none" if launch.no_python else None), place, directory, job_directory)
    fewest, most = node_range(flags["nnodes"])
    is_own = flags["standalone"] or (not detach and is_missing(directory, nats_url, database_url))
    is_elastic = most > fewest and not is_own
    try:
        spec = JobSpec(
            name=name,
            script=script,
            args=args,
            is_module=is_module,
            nnodes=fewest if is_own else most,
            nnodes_min=fewest if is_elastic else 0,
            nnodes_max=most if is_elastic else 0,
            nproc_per_node=ranks_per_node(flags["nproc_per_node"]),
            mesh=mesh,
            env=ranks_environment(env, env_files, os.environ, none=env_none)
            | ({MEMORY_CHECKPOINTS: "1"} if memory_checkpoints else {})
            | ({SCRIPT_LINK: named} if is_linked else {}),
            python=callers_python(python, os.environ),
            cwd=os.getcwd(),
            directory=str(job_directory),
            start=start,
            persist_every=persist_every,
            allow_scratch=allow_scratch,
            data=tuple(str(Path(path).absolute()) for path in data),
            warm_up=not no_warmup,
            tags=_tags(tags),
            training_logs=training_logs,
            token=secrets.token_urlsafe(),
            code_root=str(found.root) if found else "",
            code_outside=found.outside if found else (),
            launch=launch,
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if is_own and detach:
        raise click.UsageError("--standalone and --detach exclude each other: the cluster ends with this command")
    if job_dir is not None and (is_own or both_elsewhere(nats_url, database_url) is None):
        _require_room(job_directory)
    if is_own:
        if most > fewest:
            click.echo(
                f"[holdfast] --nnodes {fewest}:{most}: the cluster for this run has {fewest}, all on this machine",
                err=True,
            )
        with own_cluster(directory, name, fewest) as own:
            database = own.info.database_urls["reader"]
            ended = asyncio.run(follow(spec, own.info.nats_url, database, code=found, own_cluster_ended=own.ended))
        _report_lost(job_directory)
        sys.exit(ended)
    address, database = both_urls(directory, nats_url, database_url)
    ended = asyncio.run(follow(spec, address, database, detach=detach, code=found))
    if not detach:
        _report_lost(job_directory)
    sys.exit(ended)


def _report_lost(job_directory: Path) -> None:
    for line in lost_saves(job_directory):
        click.echo(f"[holdfast] {line}", err=True)


def _found(script: str, is_module: bool, no_python: bool) -> tuple[Path, str]:
    """Return the place by which the script's source tree is found, and the script as ranks run it."""
    if is_module:
        if not all(part.isidentifier() for part in script.split(".")):
            raise click.ClickException(
                f"{script!r} is not the name of a module; give one such as package.train, or a file"
            )
        return Path.cwd() / "-m", script
    program = shutil.which(script) if no_python else script
    if program is None:
        raise click.ClickException(f"there is no program {script}, here or on PATH")
    if not Path(program).is_file():
        raise click.ClickException(f"there is no script {script}; give a file, or a module with -m")
    place = Path(program).resolve()
    # A program acts by the name that it is called by: one Python serves several environments, one BusyBox all commands.
    return place, os.path.abspath(program) if no_python else str(place)


def _code(named: str | None, script: Path, *own: Path) -> Snapshot | None:
    """Return the version that ranks will run, None to run the script where it lies."""
    if named == "none":
        return None
    if named is None:
        return snapshot_for_script(script, *own)
    root = Path(os.path.realpath(named))
    if not script.is_relative_to(root):
        raise click.ClickException(
            f"--code {named}: {script.parent if script.name == '-m' else script} is not below it"
        )
    return snapshot_of(root, *own)


def _job_directory(named: Path) -> Path:
    if _URL.match(str(named)) and not Path(named.parts[0]).exists():
        raise click.ClickException(
            f"--job-dir {named}: a job's directory lies on a disk that all of its nodes reach; give the URL of an "
            "object store to the script's Checkpointer"
        )
    return Path(os.path.realpath(named))


def _require_room(directory: Path) -> None:
    """Refuse a directory that cannot be written, before ranks fail at their first save. Leaves no new directory."""
    made = [above for above in (directory, *directory.parents) if not above.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise click.ClickException(f"--job-dir {directory}: nothing can be written there: {error.strerror}") from error
    finally:
        for above in made:
            with contextlib.suppress(OSError):
                above.rmdir()


def _tags(tags: tuple[str, ...]) -> dict[str, str]:
    return {quantity: tag for quantity, _, tag in (entry.partition("=") for entry in tags)}
