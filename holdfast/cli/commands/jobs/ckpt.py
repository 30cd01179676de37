"""`holdfast ckpt`: list, verify, export and import checkpoints; show the plan of copies in memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.checkpoints.ckpt_locations import (
    CheckpointQuery,
    CheckpointRow,
    CheckpointUnavailable,
    checkpoint_errors,
    list_checkpoints,
    one_location,
)
from holdfast.cli.checkpoints.ckpt_plan import job_plan, lost_text, plan_text
from holdfast.cli.checkpoints.ckpt_sizes import age_text, size_text, typed_bytes
from holdfast.cli.connect.addresses import database_option, reader_url
from holdfast.cli.connect.connect_options import json_option, reading_options
from holdfast.cli.connect.database import read
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import cell, json_text, render
from holdfast.cli.values import FilePath, NonEmptyText, WholeNumber
from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.exchange.verify import Damage, verify
from holdfast.trainer.checkpoint.storage.directory import Storage
from holdfast.trainer.checkpoint.storage.folder import FoundCheckpoint, StepState
from holdfast.trainer.checkpoint.storage.places import open_storage

# Importing torch takes a second, so only the commands that need it do, when they run.

THREADS = min(8, os.cpu_count() or 1)

_STEP = re.compile("[0-9]{1,15}")

F = TypeVar("F", bound=Callable[..., Any])

path_option = click.option(
    "--path",
    type=NonEmptyText(),
    metavar="DIR|URL",
    help="Directory or URL (s3://, gs://) of the checkpoints, instead of a JOB.",
)


trust_option = click.option(
    "--trust", "trusts", is_flag=True, help="Run the code that pickles name, with your rights, as a restore does."
)


def _one_job(command: F) -> F:
    """Add JOB, --path, --dir and --database-url to a command."""
    decorated: F = click.argument("job", required=False)(path_option(directory_option(database_option(command))))
    return decorated


@click.group()
def ckpt() -> None:
    """List, verify, export and import checkpoints; show who keeps copies in memory.

    Name a job as `holdfast jobs` lists it, or the directory or URL of its checkpoints with --path.

    \b
        holdfast ckpt ls
        holdfast ckpt plan my-job
        holdfast ckpt verify my-job
        holdfast ckpt export newest my-job --to out --format safetensors --only model
        holdfast ckpt import out --path /shared/new-job/checkpoints --step 1
    """


@ckpt.command()
@click.argument("job", required=False)
@path_option
@reading_options
def ls(job: str | None, path: str | None, directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the checkpoints of JOB, of all jobs of this cluster, or at a --path.

    \b
    complete     published, every part has its full size; `holdfast ckpt verify` also checks the contents
    damaged      set aside because it failed its checks, or a part is cut or missing
    rolled-back  set aside because the job returned to an older step
    unfinished   being written, or left by a generation that ended while writing it
    unreadable   written by another version, or a permission or a mount is missing
    elsewhere    listed in the catalogue, but its directory is not visible from here

    Nothing is locked or changed: a running job is not disturbed.
    """
    with checkpoint_errors():
        rows = list_checkpoints(CheckpointQuery(job, path, directory, database_url))
    if as_json:
        click.echo(json_text(rows, indent=2))
    elif not rows:
        click.echo("no checkpoints: a script makes them with holdfast.trainer.checkpoint.Checkpointer")
    else:
        click.echo(_table(rows))


def _table(rows: list[CheckpointRow]) -> str:
    now = datetime.now(UTC)
    headers = ["JOB", "STEP", "STATE", "SIZE", "AGE", "RANKS", "MESH", "WHERE", "NOTE"]
    lines = [
        (
            row.job,
            row.step,
            row.state,
            size_text(row.bytes),
            age_text((now - row.saved_at).total_seconds() if row.saved_at else None),
            row.world_size,
            ",".join(f"{name}={size}" for name, size in (row.mesh or {}).items()),
            row.where,
            row.note,
        )
        for row in rows
    ]
    # Empty columns are omitted: the job with --path, notes when all is well.
    shown = [place for place in range(len(headers)) if any(line[place] not in (None, "") for line in lines)]
    return render([headers[place] for place in shown], [[line[place] for place in shown] for line in lines])


@ckpt.command()
@click.argument("job")
@click.option("--lost", metavar="NODE,...", help="Nodes to lose at once, such as those of a rack.")
@reading_options
def plan(job: str, lost: str | None, directory: Path, database_url: str | None, as_json: bool) -> None:
    """Show which nodes keep copies of JOB's shards in memory, and what losses of machines that survives.

    \b
        holdfast ckpt plan my-job
        holdfast ckpt plan my-job --lost node-4,node-5,node-6

    A share counts the losses after which every shard is still in the memory of some node, out of all losses of one, two
    or three machines, or of a parallel group with all machines that it is on. It is exact, not sampled. Other plans are
    shown for comparison. Ranks are taken to have nothing in common; with replicas the odds are at least these.
    """
    require_name(job, "job name")
    names = [] if lost is None else [require_name(name.strip(), "node name") for name in lost.split(",")]
    found = read(reader_url(directory, database_url), lambda connection: job_plan(connection, job))
    if as_json:
        data = msgspec.to_builtins(found)
        click.echo(json_text(data | {"lost_shards": found.lost_shards(names)} if names else data, indent=2))
    else:
        click.echo(lost_text(found, names) if names else plan_text(found))


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `holdfast ckpt verify --json` for one checkpoint."""

    step: int
    where: str
    whole: bool
    checked_bytes: int
    damage: tuple[Damage, ...]
    has_unsummed_manifest: bool = False


@ckpt.command("verify")
@_one_job
@click.option(
    "--step",
    "steps",
    type=WholeNumber(min=0),
    multiple=True,
    help="Only this step, even if it was set aside; repeatable. Default: every published step.",
)
@click.option("--threads", type=WholeNumber(1, 64), default=THREADS, show_default=True, help="Parts read at once.")
@json_option
def verify_command(
    job: str | None,
    path: str | None,
    directory: Path,
    database_url: str | None,
    steps: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Read checkpoints of JOB, or at a --path, and compare every checksum; name the damaged bytes of each file.

    \b
        holdfast ckpt verify my-job
        holdfast ckpt verify my-job --step 400

    Exit codes: 0 all whole, 1 something is damaged, 2 it could not be checked.
    """
    place = one_location(CheckpointQuery(job, path, directory, database_url))
    verified: list[Verified] = []
    with checkpoint_errors():
        storage = open_storage(place.where)
        for found in _to_verify(storage, steps):
            try:
                one = _verified(found, threads, show=not as_json)
            except CheckpointError:
                if _is_there(storage, found):
                    raise
                one = None
            # A running job deletes old steps, even while they are read.
            if one is None or not (one.whole or _is_there(storage, found)):
                click.echo(f"step {found.step} was deleted by its job in the meantime", err=True)
                continue
            verified.append(one)
            if not as_json:
                click.echo("\n".join(_in_words(one)))
    if as_json:
        click.echo(json_text(verified, indent=2))
    sys.exit(0 if all(it.whole for it in verified) else 1)


def _to_verify(storage: Storage, steps: tuple[int, ...]) -> list[FoundCheckpoint]:
    everything = sorted(storage.survey(), key=lambda found: (found.step, found.folder.name))
    if not steps:
        chosen = [found for found in everything if found.state is StepState.COMPLETE]
        if not chosen:
            raise CheckpointUnavailable("there is no published checkpoint; `holdfast ckpt ls` lists the others")
        return chosen
    chosen = [found for found in everything if found.step in steps and found.state is not StepState.UNFINISHED]
    if missing := set(steps) - {found.step for found in chosen}:
        raise CheckpointUnavailable(f"there is no step {', '.join(map(str, sorted(missing)))}; {_steps_text(storage)}")
    return chosen


def _is_there(storage: Storage, found: FoundCheckpoint) -> bool:
    return found.folder.name in {it.folder.name for it in storage.survey()}


def _verified(found: FoundCheckpoint, threads: int, *, show: bool) -> Verified:
    total = sum(found.folder.sizes().values())
    with _progress(f"step {found.step}", total, show=show) as on_bytes:
        verdict = verify(found.folder, threads=threads, on_bytes=on_bytes)
    return Verified(
        step=found.step,
        where=found.folder.name,
        whole=not verdict.damage,
        checked_bytes=verdict.checked_bytes,
        damage=verdict.damage,
        has_unsummed_manifest=verdict.has_unsummed_manifest,
    )


def _in_words(one: Verified) -> list[str]:
    head = f"step {one.step}: {size_text(one.checked_bytes)} read, {'whole' if one.whole else 'DAMAGED'}"
    if one.whole:
        return [head]
    return [
        f"{head} ({cell(one.where)})",
        *(["  its manifest has no checksum: an older version wrote it"] if one.has_unsummed_manifest else []),
        *(f"  {cell(it.file)}, bytes {it.begin} to {it.end}: {cell(it.what)}" for it in one.damage),
    ]


@ckpt.command()
@click.argument("step")
@_one_job
@click.option("--to", "target", type=FilePath(path_type=Path), required=True, help="A directory that does not exist.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["dcp", "safetensors"]),
    required=True,
    help="dcp: for torch.distributed.checkpoint.load. safetensors: tensors only, with Hugging Face's index.",
)
@click.option("--only", multiple=True, metavar="ENTRY", help="Only this entry of the state, such as model; repeatable.")
@click.option("--shard", metavar="LABEL", help="Only global state and this PerShard state, under its plain names.")
@click.option(
    "--max-shard-size",
    "shard_bytes_max",
    default="5GB",
    show_default=True,
    callback=typed_bytes,
    help="Maximum size of one safetensors file.",
)
@trust_option
def export(
    step: str,
    job: str | None,
    path: str | None,
    directory: Path,
    database_url: str | None,
    target: Path,
    form: str,
    only: tuple[str, ...],
    shard: str | None,
    shard_bytes_max: int,
    trusts: bool,
) -> None:
    """Export STEP (or `newest`) of JOB, or at a --path, for use without Holdfast. Every byte is checked.

    \b
        holdfast ckpt export newest my-job --to out --format safetensors --only model

    State marked PerShard or PerRank is not merged, because it does not record whether its tensors are slices or stages.
    It is exported under separate keys, such as "shard/pp=0/model.weight"; --shard exports one shard under plain names.

    Values that are not tensors are exported if they load without running code that the checkpoint names: numbers,
    texts, containers, arrays. --trust exports the others too.
    """
    place = one_location(CheckpointQuery(job, path, directory, database_url))
    with checkpoint_errors():
        found = _step_named(open_storage(place.where), step)
        from holdfast.cli.checkpoints.ckpt_exchange import export_step

        with _progress(f"step {found.step}", None, show=True) as on_bytes:
            lines = export_step(found, target, form, only, shard, shard_bytes_max, on_bytes, trusts=trusts)
    click.echo("\n".join(lines))


@ckpt.command("import")
@click.argument("source", type=FilePath(exists=True, path_type=Path))
@_one_job
@click.option("--step", type=WholeNumber(min=1), required=True, help="Step number of the new checkpoint.")
@click.option("--entry", metavar="NAME", help="Import everything below this entry of the state, such as model.")
@click.option("--replace", is_flag=True, help="Replace an existing step.")
@trust_option
def import_command(
    source: Path,
    job: str | None,
    path: str | None,
    directory: Path,
    database_url: str | None,
    step: int,
    entry: str | None,
    replace: bool,
    trusts: bool,
) -> None:
    """Import SOURCE (torch.distributed.checkpoint or safetensors) as a checkpoint of JOB or at a --path.

    \b
        holdfast ckpt import out --path /shared/new-job/checkpoints --step 1

    A script restores it if its state has the same keys: entry, dot, name of the tensor. Checkpoints of other programs
    often lack the entry; `--entry model` adds it. A checkpoint that names code to run is refused without
    --trust.
    """
    from holdfast.cli.checkpoints.ckpt_exchange import StepExists, import_step

    place = one_location(CheckpointQuery(job, path, directory, database_url), to_write=True)
    with checkpoint_errors(), _progress(f"step {step}", None, show=True) as on_bytes:
        try:
            location, nbytes = import_step(place.where, source, step, entry, on_bytes, replaces=replace, trusts=trusts)
        except StepExists as error:
            raise click.ClickException(str(error)) from error
    click.echo(f"step {step}, {size_text(nbytes)}, is in {location}")


def _step_named(storage: Storage, step: str) -> FoundCheckpoint:
    published = {found.step: found for found in storage.survey() if found.state is StepState.COMPLETE}
    if step == "newest" and published:
        return published[max(published)]
    if not _STEP.fullmatch(step) and step != "newest":
        raise click.UsageError(f"{step!r} is not a step: give a number, or newest")
    if step == "newest" or int(step) not in published:
        raise click.ClickException(f"there is no step {step}; {_steps_text(storage)}")
    return published[int(step)]


def _steps_text(storage: Storage) -> str:
    steps = sorted(storage.steps())
    return f"there are {', '.join(map(str, steps))}" if steps else "there is no published step"


@contextmanager
def _progress(label: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Show the bytes done on a terminal. The function that is yielded adds bytes, and may be called from any thread."""
    if not show or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda nbytes: progress.advance(task, nbytes)
