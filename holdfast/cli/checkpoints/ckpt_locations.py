"""Locations and contents of a job's checkpoints, from the disk and from the catalogue in the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import click
import msgspec

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.database import read
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import printable
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest
from holdfast.trainer.checkpoint.storage.directory import Storage
from holdfast.trainer.checkpoint.storage.folder import FoundCheckpoint, StepState, missing_or_cut, read_manifest
from holdfast.trainer.checkpoint.storage.places import is_url, open_storage

_STEPS = "select job, step, path, bytes, saved_at from ckpt.steps where $1::text is null or job = $1"

_SAVED = """
select job, body ->> 'path' as path from historian.events
where type = 'checkpoint_saved' and ($1::text is null or job = $1) order by at desc limit $2"""
"""Steps that jobs have saved, the newest first. The catalogue forgets a job that has finished."""

SAVED_READ_MAX = 10_000
"""The record of years may have millions, and most jobs save to one place."""

_STEP_PATH = re.compile(r"(.+?)(?:/generation-[^/]+/(?:vault-)?|/)step-[^/]+/?")


PROBLEMS_SHOWN = 3


class CheckpointLocation(NamedTuple):
    """A directory or URL with checkpoints, and their job if it is known."""

    job: str | None
    where: str


class CheckpointQuery(NamedTuple):
    """The checkpoints that a command is about: those of a job, those at a path, or all of this cluster."""

    job: str | None
    path: str | None
    directory: Path
    database_url: str | None


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in `holdfast ckpt ls`. `world_size` and `mesh` are those that it was saved with."""

    job: str | None
    step: int
    state: str
    bytes: int | None
    saved_at: datetime | None
    world_size: int | None
    mesh: dict[str, int] | None
    where: str
    note: str = ""


class NoLocation(click.ClickException):
    """Neither a directory nor the catalogue is available."""


class CheckpointUnavailable(click.ClickException):
    """A checkpoint cannot be read; it is not known whether it is damaged."""

    exit_code = 2


@contextmanager
def checkpoint_errors() -> Iterator[None]:
    """Turn an error of a checkpoint into a message: exit code 1 if it is damaged, 2 if that is not known."""
    try:
        yield
    except DamagedCheckpoint as error:
        raise click.ClickException(printable(str(error))) from error
    except CheckpointError as error:
        raise CheckpointUnavailable(printable(str(error))) from error


def locations(wanted: CheckpointQuery) -> tuple[list[CheckpointLocation], list[asyncpg.Record]]:
    """Return the locations, and the catalogue's steps unless a path is given. Raises NoLocation if there is neither."""
    if wanted.path is not None:
        if wanted.job is not None:
            raise click.UsageError("name a job or a --path, not both")
        return [CheckpointLocation(None, wanted.path)], []
    if wanted.job is not None:
        require_name(wanted.job, "job name")
    found = {CheckpointLocation(path.parent.name, str(path)) for path in _directories(wanted)}
    try:
        url = reader_url(wanted.directory, wanted.database_url)
        catalogued = read(url, lambda database: database.fetch(_STEPS, wanted.job))
    except click.ClickException as error:
        if not found:
            raise NoLocation(
                f"{error.message}\nno checkpoints below {wanted.directory / 'jobs'} either: name their directory or "
                "URL with --path"
            ) from error
        click.echo(f"the catalogue cannot be read: {error.message}", err=True)
        catalogued = []
    found |= {CheckpointLocation(row["job"], root_of(row["path"])) for row in catalogued}
    return sorted(found, key=lambda place: (place.job or "", place.where)), catalogued


def saved_locations(wanted: CheckpointQuery, *, saves_max: int = SAVED_READ_MAX) -> list[CheckpointLocation]:
    """Return where jobs have saved by the newest events of this cluster, the newest first, also jobs that have ended.

    They may have had another directory than the default: by --job-dir, or by the script's Checkpointer.
    """
    try:
        url = reader_url(wanted.directory, wanted.database_url)
        saved = read(url, lambda database: database.fetch(_SAVED, wanted.job, saves_max))
    except click.ClickException as error:
        click.echo(f"the directories of jobs that have ended cannot be read: {error.message}", err=True)
        return []
    found: dict[str, CheckpointLocation] = {}
    for place in (CheckpointLocation(row["job"], root_of(row["path"])) for row in saved):
        found.setdefault(place.where, place)
    return [*found.values()]


def one_location(wanted: CheckpointQuery, *, to_write: bool = False) -> CheckpointLocation:
    """Return the single location. Raises ClickException if there is none, or more than one.

    A job without another location is read where it saved last. Nothing is written there: an older job of this name may
    have saved it.
    """
    if wanted.job is None and wanted.path is None:
        raise click.UsageError("name a job, or the directory or URL of its checkpoints with --path")
    try:
        found, _ = locations(wanted)
    except NoLocation:
        if not to_write:
            raise
        found = []
    if to_write and not found:
        return CheckpointLocation(
            wanted.job, str((wanted.directory / "jobs" / str(wanted.job) / "checkpoints").resolve())
        )
    found = found or saved_locations(wanted, saves_max=1)
    if len(found) != 1:
        names = ", ".join(place.where for place in found) or "nowhere"
        raise click.ClickException(f"checkpoints of job {wanted.job} are at: {names}; name one with --path")
    if not to_write and not is_visible(found[0]):
        raise CheckpointUnavailable(f"{found[0].where} is not visible from this machine")
    return found[0]


def is_visible(place: CheckpointLocation) -> bool:
    """Return True if the location can be read from this machine; a directory may be on another."""
    return is_url(place.where) or Path(place.where).is_dir()


def list_checkpoints(wanted: CheckpointQuery) -> list[CheckpointRow]:
    """Return all checkpoints, newest last: unfinished ones, and those that only the catalogue lists, too."""
    found, catalogued = locations(wanted)
    if wanted.path is None:
        known = {place.where for place in found}
        # A store is asked only for a job that is named: it may be gone, or take long.
        found += [
            place
            for place in saved_locations(wanted)
            if place.where not in known and is_visible(place) and (wanted.job or not is_url(place.where))
        ]
    rows: list[CheckpointRow] = []
    for place in found:
        if is_visible(place):
            rows += _rows(place, open_storage(place.where))
        elif wanted.path is not None:
            raise click.ClickException(f"there is no directory {place.where}")
    rows += [
        _elsewhere(row) for row in catalogued if not is_visible(CheckpointLocation(row["job"], root_of(row["path"])))
    ]
    return sorted(rows, key=lambda row: (row.job or "", row.step, row.state != StepState.COMPLETE, row.where))


def root_of(step_path: str) -> str:
    """Return the location of a step from the path of the step."""
    match = _STEP_PATH.fullmatch(step_path)
    return match[1] if match else step_path


def _directories(wanted: CheckpointQuery) -> list[Path]:
    jobs = (wanted.directory / "jobs").resolve()
    pattern = f"{wanted.job}/checkpoints" if wanted.job else "*/checkpoints"
    return [path for path in jobs.glob(pattern) if path.is_dir()]


def _rows(place: CheckpointLocation, storage: Storage) -> list[CheckpointRow]:
    rows = [_row(place, found) for found in storage.survey()]
    if not any(row.note for row in rows):
        return rows
    # A running job deletes steps while they are read; a half deleted step is not a damaged one.
    still_there = {found.folder.name for found in storage.survey()}
    return [row for row in rows if row.where in still_there]


def _row(place: CheckpointLocation, found: FoundCheckpoint) -> CheckpointRow:
    manifest: CheckpointManifest | None = None
    state, note = str(found.state), ""
    nbytes: int | None = None
    try:
        if found.state is StepState.UNFINISHED:
            nbytes = sum(found.folder.sizes().values())
        else:
            manifest = read_manifest(found.folder)
            nbytes = manifest.nbytes
            if problems := [f"{name}: {problem}" for name, problem in missing_or_cut(found.folder, manifest)]:
                state, note = str(StepState.DAMAGED), "; ".join(problems[:PROBLEMS_SHOWN])
    except DamagedCheckpoint as error:
        state, note = str(StepState.DAMAGED), str(error)
    except CheckpointError as error:
        state, note = "unreadable", str(error)
    seconds = manifest.created_at if manifest else found.folder.modified_at()
    return CheckpointRow(
        job=place.job,
        step=found.step,
        state=state,
        bytes=nbytes,
        saved_at=_moment(seconds),
        world_size=manifest.world_size if manifest else None,
        mesh=manifest.mesh if manifest else None,
        where=found.folder.name,
        note=note,
    )


def _moment(seconds: float | None) -> datetime | None:
    """Return the time; None if there is none: a manifest is its author's, and may have any number."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def _elsewhere(row: Any) -> CheckpointRow:
    return CheckpointRow(
        job=row["job"],
        step=row["step"],
        state="elsewhere",
        bytes=row["bytes"],
        saved_at=row["saved_at"],
        world_size=None,
        mesh=None,
        where=row["path"],
        note="in the catalogue; its directory is not visible from this machine",
    )
