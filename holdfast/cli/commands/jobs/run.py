"""`holdfast run`: submit a job, show its output, return its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from holdfast.cli.code_upload import snapshot_for_script, snapshot_of
from holdfast.cli.connect.addresses import both_elsewhere, both_urls, database_option, nats_option
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.follow.training_job import follow
from holdfast.cli.hidden_arguments import hide_values
from holdfast.cli.names import require_name
from holdfast.cli.values import FilePath, NonEmptyText, WholeNumber
from holdfast.code.snapshot import Snapshot
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import new_job_name
from holdfast.node.rank_variables import RESERVED

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def _as_torchrun(option: str) -> str:
    """Accept the option with underscores too, as torchrun does."""
    return option.replace("_", "-")


@click.command(context_settings={"allow_interspersed_args": False, "token_normalize_func": _as_torchrun})
@click.option("--nnodes", type=WholeNumber(min=1), default=1, show_default=True, help="Nodes to run on.")
@click.option("--nproc-per-node", type=WholeNumber(min=1), default=1, show_default=True, help="Ranks on each node.")
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
    help="Environment variable of the ranks; without VALUE, copied from this environment. Repeatable.",
)
@click.option("--name", type=NonEmptyText(), help="The job's name (default: the script's name and a random part).")
@click.option("--job-dir", type=FilePath(path_type=Path), help="Directory for checkpoints; every node must reach it.")
@click.option("--module", "-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
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
    "--allow-scratch",
    is_flag=True,
    help="Start from scratch if all checkpoints that the job has made are lost. Without it the job ends then.",
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
@directory_option
@nats_option
@database_option
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    nnodes: int,
    nproc_per_node: int,
    mesh: str | None,
    env: tuple[str, ...],
    name: str | None,
    job_dir: Path | None,
    is_module: bool,
    start: str,
    persist_every: str,
    allow_scratch: bool,
    code: str | None,
    tags: tuple[str, ...],
    training_logs: tuple[str, ...],
    detach: bool,
    directory: Path,
    nats_url: str | None,
    database_url: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT ARGS... under Holdfast, as torchrun would.

    \b
        holdfast run train.py
        holdfast run --nnodes 4 --nproc-per-node 2 --mesh pp=2,dp=2,tp=2 train.py --steps 1000

    Ranks get the environment variables that torchrun sets. Rank 0's output is shown here; the output of every rank is
    kept on its node (`holdfast logs JOB`). Ctrl-C stops the job; a second Ctrl-C leaves it to stop by itself. The job
    continues when the output is no longer read (`| head`) or the terminal is closed; `holdfast attach` follows it
    again.

    Ranks run in this directory, with the Python and the environment in which their node's agent was started (`holdfast
    up`, on one machine). From the environment of this command they get only what --env names.

    Ranks run a snapshot of the code, copied to each node: editing a file has no effect before `holdfast update`. Files
    that git ignores, such as data, are found beside the script as before.

    Values of --env travel over the bus and are stored with the job. Users who may only read the database cannot see
    them, but secrets belong in files or in the environment of the nodes.

    Under agents of root, ranks run as a user of the job's own, who may write to the job's directory, HOME and /tmp.
    They run as root if the script, Python or an existing job directory is closed to that user, which is reported here.
    `holdfast up --run-as` and the setting [jobs] run_as choose another user (docs/security.md).

    Exit codes: the job's; 130 after Ctrl-C; 141 if the output is no longer read; 1 if the job was not accepted.
    """
    hide_values(env)
    name = require_name(name, "job name") if name else new_job_name(script if is_module else Path(script).stem)
    if is_module and not all(part.isidentifier() for part in script.split(".")):
        raise click.ClickException(f"{script!r} is not the name of a module; give one such as package.train, or a file")
    if not is_module and not Path(script).is_file():
        raise click.ClickException(f"there is no script {script}; give a file, or a module with -m")
    job_directory = (job_dir or directory / "jobs" / name).resolve()
    place = Path.cwd() / "-m" if is_module else Path(script).resolve()
    found = _code(code, place, directory, job_directory)
    try:
        spec = JobSpec(
            name=name,
            script=script if is_module else str(Path(script).resolve()),
            args=args,
            is_module=is_module,
            nnodes=nnodes,
            nproc_per_node=nproc_per_node,
            mesh=mesh,
            env=_pairs(env, os.environ),
            cwd=os.getcwd(),
            directory=str(job_directory),
            start=start,
            persist_every=persist_every,
            allow_scratch=allow_scratch,
            tags=_tags(tags),
            training_logs=training_logs,
            token=secrets.token_urlsafe(),
            code_root=str(found.root) if found else "",
            code_outside=found.outside if found else (),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if job_dir is not None and both_elsewhere(nats_url, database_url) is None:
        _require_room(job_dir.resolve())
    address, database = both_urls(directory, nats_url, database_url)
    sys.exit(asyncio.run(follow(spec, address, database, detach=detach, code=found)))


def _code(named: str | None, script: Path, *own: Path) -> Snapshot | None:
    """Return the version that ranks will run, None to run the script where it lies."""
    if named == "none":
        return None
    if named is None:
        return snapshot_for_script(script, *own)
    root = Path(named).resolve()
    if not script.is_relative_to(root):
        raise click.ClickException(
            f"--code {named}: {script.parent if script.name == '-m' else script} is not below it"
        )
    return snapshot_of(root, *own)


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


def _pairs(env: tuple[str, ...], here: Mapping[str, str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for entry in env:
        key, equals, value = entry.partition("=")
        if not key:
            raise click.ClickException(f"--env {entry!r} has not the form NAME or NAME=VALUE")
        if not _VARIABLE.fullmatch(key):
            raise click.ClickException(
                f"--env {entry!r}: {key!r} is not the name of a variable; use letters, digits, _, . and -, and no digit"
                " at the start"
            )
        if key in RESERVED:
            raise click.ClickException(f"--env {key}: the launcher sets it for each rank, as torchrun does")
        if not equals and key not in here:
            raise click.ClickException(f"--env {key}: {key} is not set in this environment; give {key}=VALUE")
        pairs[key] = value if equals else here[key]
    return pairs
