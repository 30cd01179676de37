"""A snapshot of code for a command, and its upload to the controller."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import click

from holdfast.bus import Bus
from holdfast.cli.connect.ask import ask, asked_by
from holdfast.cli.output.tables import printable
from holdfast.code.in_place import HELD
from holdfast.code.manifest import encode
from holdfast.code.on_bus import publish
from holdfast.code.private_files import PRIVATE
from holdfast.code.snapshot import FOUND_TREE_LIMITS, LeftOut, Snapshot, SnapshotRefused, snapshot, tree_of
from holdfast.fresh_ids import uuid7
from holdfast.requests import CODE_REQUESTS, CodeOffer, KeepCode
from holdfast.subjects import CODE_BUCKET

_NAMED = 5
_IGNORED = "ignored by git"


def snapshot_of(root: Path, *own: Path) -> Snapshot:
    """Take a snapshot of a directory that the user named, without Holdfast's `own` directories (a cluster's, a job's).
    Raises ClickException if it cannot be kept as a version.
    """
    try:
        taken = snapshot(root, exclude=_inside(root, own))
    except SnapshotRefused as error:
        raise click.ClickException(printable(str(error))) from error
    _name_left_out(left for left in taken.left_out if left.why != _IGNORED)
    return taken


def snapshot_for_script(script: Path, *own: Path) -> Snapshot | None:
    """Take a snapshot of the source tree of a script; None if no such tree is found, or it is large."""
    root = tree_of(script, Path.cwd())
    why = "it lies in a home directory or at the root of the file system"
    if root is not None:
        try:
            taken = snapshot(root, FOUND_TREE_LIMITS, exclude=_inside(root, own))
        except SnapshotRefused as error:
            why = str(error)
        else:
            # All others are read where they lie, whether or not they belong to the version.
            _name_left_out(left for left in taken.left_out if left.why in PRIVATE and left.path.endswith(HELD))
            return taken
    click.echo(
        f"the script runs where it lies, and cannot be updated or rolled back while it runs: {printable(why)}. Name "
        "its source tree with --code DIR, or give --code none to run it this way without this message",
        err=True,
    )
    return None


async def upload(bus: Bus, code: Snapshot, message: str = "") -> CodeOffer:
    """Have the controller keep this version; files that it has already are not sent. Raises ClickException if it is
    refused or nothing answers, BusError if it cannot be sent.
    """
    every: Collection[str] = code.contents.keys()
    refusal = ""
    lacking: Collection[str] = ()
    # The controller may have the version; from its manifest it names what it lacks; what the bus has may be damaged.
    for attempt in range(4):
        if attempt:
            wanted = every if attempt == 3 else lacking
            await publish(bus, code.version, {digest: code.contents[digest] for digest in wanted})
            await bus.put_objects(CODE_BUCKET, {code.version: encode(code.manifest)})
        request = KeepCode(id=uuid7(), asked_by=asked_by(), version=code.version)
        answer = await ask(bus, CODE_REQUESTS, request, "controller")
        if answer.accepted:
            return CodeOffer(
                version=code.version,
                files=len(code.manifest.entries),
                code_bytes=code.manifest.code_bytes,
                origin=str(code.root),
                commit=code.commit.id if code.commit else "",
                is_dirty=code.commit.is_dirty if code.commit else False,
                message=message,
            )
        refusal = answer.message
        if attempt:
            lacking = [digest for digest in answer.lacking if digest in every] or every
    raise click.ClickException(refusal)


def _name_left_out(every: Iterable[LeftOut]) -> None:
    left = [f"{left.path} ({left.why})" for left in every]
    if left:
        named = printable("; ".join(left[:_NAMED])) + (f"; {len(left) - _NAMED} more" if len(left) > _NAMED else "")
        click.echo(f"[holdfast] not part of the code's version, and read where it lies: {named}", err=True)


def _inside(root: Path, own: tuple[Path, ...]) -> list[Path]:
    here = root.resolve()
    real = [Path(os.path.realpath(path)) for path in own]
    return [path for path in real if path != here and path.is_relative_to(here)]
