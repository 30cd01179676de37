"""Export and import of checkpoints for `holdfast ckpt`, with the lines that report it. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.cli.checkpoints.ckpt_sizes import size_text
from holdfast.cli.output.tables import cell
from holdfast.node.holders import acting_as, holder
from holdfast.node.users.own_users import Exchanged
from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.exchange.contents import CheckpointContents
from holdfast.trainer.checkpoint.exchange.export import Selection, export_dcp, select, unpicklable
from holdfast.trainer.checkpoint.exchange.importing import Incoming, import_checkpoint, incoming, renamed
from holdfast.trainer.checkpoint.exchange.safetensors_files import export_safetensors, fits
from holdfast.trainer.checkpoint.storage.folder import FoundCheckpoint
from holdfast.trainer.checkpoint.storage.places import is_url, open_storage

NAMES_SHOWN = 5

OnBytes = Callable[[int], None]


def export_step(
    found: FoundCheckpoint,
    target: Path,
    form: str,
    only: Sequence[str],
    shard: str | None,
    shard_bytes_max: int,
    on_bytes: OnBytes,
    *,
    trusts: bool,
) -> list[str]:
    """Export the step and return the lines that report it. `trusts`: run what its pickles name."""
    contents = CheckpointContents(found.folder, trusts=trusts)
    selection = select(contents.values, shard=shard, only=only)
    report = _selection_report(selection)
    if form == "dcp":
        broken = unpicklable(contents, selection.outgoing)
        outgoing = [it for it in selection.outgoing if it.name not in broken]
        _refuse_nothing(outgoing)
        export_dcp(contents, outgoing, target, on_bytes)
        report += [f"omitted, cannot be unpickled here: {cell(name)} ({cell(broken[name])})" for name in broken]
    else:
        outgoing = [it for it in selection.outgoing if fits(it)]
        _refuse_nothing(outgoing)
        export_safetensors(contents, outgoing, target, shard_bytes_max=shard_bytes_max, on_bytes=on_bytes)
        if others := [it.name for it in selection.outgoing if not fits(it)]:
            report.append(f"omitted, safetensors cannot store it: {_some(others)}")
    nbytes = sum(it.value.nbytes for it in outgoing)
    return [f"step {found.step}: {len(outgoing)} values, {size_text(nbytes)}, in {target}", *report]


def import_step(
    place: str, source: Path, step: int, entry: str | None, on_bytes: OnBytes, *, replaces: bool, trusts: bool
) -> tuple[str, int]:
    """Import the step and return its location and size in bytes. `trusts`: run what its pickles name.

    Root writes with the rights of the user whose the place is: ranks can use and remove what it writes, and a link
    that they have put there leads no further than they could go. Raises StepExists, CheckpointError.
    """
    with _acting_as_holder(place) as by_itself:
        storage = open_storage(place)
        if step in storage.steps() and not replaces:
            raise StepExists(f"{place} has step {step} already; choose another, or --replace it")
        values = by_itself(partial(incoming, source, trusts=trusts))
        named = renamed(values, entry) if entry else values
        location = import_checkpoint(storage, step, _read_by(by_itself, named), on_bytes)
        return location, storage.manifest(step).nbytes


class StepExists(Exception):
    """The step to import is there already."""


@contextmanager
def _acting_as_holder(place: str) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    user = None
    try:
        user = None if is_url(place) else holder(Path(place))
        with acting_as(user) as by_itself:
            yield by_itself
    except (Exchanged, OSError) as error:
        whose = f" as its user {user.name}" if user is not None else ""
        raise CheckpointError(f"{place} cannot be written{whose}: {error}") from error


def _read_by(by_itself: Callable[[Callable[[], Any]], Any], values: Iterator[Incoming]) -> Iterator[Incoming]:
    """Read the values, which may be open to oneself only, with one's own rights."""
    while (value := by_itself(lambda: next(values, None))) is not None:
        yield value._replace(read=partial(by_itself, value.read))


def _selection_report(selection: Selection) -> list[str]:
    report: list[str] = []
    if selection.apart:
        report.append(
            f"not merged, because PerShard and PerRank state cannot be: {_some(selection.apart)}; its keys are "
            f'separate, such as "{selection.apart[0]}/...". --shard LABEL exports one shard under plain names'
        )
    if selection.left_out:
        report.append(f"omitted: {_some(selection.left_out)}")
    return report


def _refuse_nothing(outgoing: Sequence[object]) -> None:
    if not outgoing:
        raise CheckpointError("there is nothing to export")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(cell(name) for name in names[:NAMES_SHOWN]) + more
