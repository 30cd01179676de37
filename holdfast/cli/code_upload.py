"""Taking a snapshot of code for a command, and bringing it to the controller."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.bus import Bus
from holdfast.cli.connect.ask import ask, asked_by
from holdfast.cli.output.tables import printable
from holdfast.code.manifest import encode
from holdfast.code.snapshot import UNASKED, Snapshot, SnapshotRefused, snapshot, tree_of
from holdfast.fresh_ids import uuid7
from holdfast.requests import CODE_REQUESTS, CodeOffer, KeepCode
from holdfast.subjects import CODE_BUCKET

_NAMED = 5
_IGNORED = "ignored by git"


def asked_for(root: Path, *own: Path) -> Snapshot:
    """The code in a directory that somebody named, without directories of Holdfast's `own` (a cluster's, a job's).

    Raises:
        ClickException: it cannot be held.
    """
    try:
        found = snapshot(root, exclude=_inside(root, own))
    except SnapshotRefused as error:
        raise click.ClickException(printable(str(error))) from error
    left = [f"{left.path} ({left.why})" for left in found.left_out if left.why != _IGNORED]
    if left:
        named = printable("; ".join(left[:_NAMED])) + (f"; {len(left) - _NAMED} more" if len(left) > _NAMED else "")
        click.echo(f"no part of the version: {named}", err=True)
    return found


def found_for(script: Path, *own: Path) -> Snapshot | None:
    """The code that a script belongs to, if that can be told and is no more than anybody would wait for."""
    root = tree_of(script, Path.cwd())
    why = "it lies in a home directory or at the root of the file system"
    if root is not None:
        try:
            return snapshot(root, UNASKED, exclude=_inside(root, own))
        except SnapshotRefused as error:
            why = str(error)
    click.echo(
        f"the script runs where it lies and cannot be updated or rolled back while it runs: {printable(why)}; or name "
        "the code with --code DIR (--code none: as it is now, without this message)",
        err=True,
    )
    return None


async def bring(bus: Bus, found: Snapshot, message: str = "") -> CodeOffer:
    """Have the controller hold this version; what it has already is not sent.

    Raises:
        ClickException: nobody answered, or it will not.
        BusError: it cannot be sent.
    """
    refusal = ""
    for resend in (None, False, True):
        if resend is not None:
            there = set() if resend else await bus.objects_there(CODE_BUCKET, found.contents)
            missing = {digest: body for digest, body in found.contents.items() if digest not in there}
            await bus.put_objects(CODE_BUCKET, missing)
            await bus.put_objects(CODE_BUCKET, {found.version: encode(found.manifest)})
        request = KeepCode(id=uuid7(), asked_by=asked_by(), version=found.version)
        answer = await ask(bus, CODE_REQUESTS, request, "controller")
        if answer.accepted:
            return CodeOffer(
                version=found.version,
                files=len(found.manifest.entries),
                code_bytes=found.manifest.code_bytes,
                origin=str(found.root),
                commit=found.commit.id if found.commit else "",
                is_dirty=found.commit.is_dirty if found.commit else False,
                message=message,
            )
        refusal = answer.message
    raise click.ClickException(refusal)


def _inside(root: Path, own: tuple[Path, ...]) -> list[Path]:
    here = root.resolve()
    return [path for path in (path.resolve() for path in own) if path != here and path.is_relative_to(here)]
