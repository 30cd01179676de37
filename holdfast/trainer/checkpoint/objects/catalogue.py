"""The catalogue of a job's checkpoints in an object store as one value, and the changes to it.

Objects can be neither renamed nor locked, so what counts is not where they lie but what the newest catalogue lists; see
`holdfast.trainer.checkpoint.objects.journal` for how one becomes the newest. Every change here leaves a catalogue in
which it is done already as it is: who does not know whether a change arrived asks for it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from holdfast.trainer.checkpoint.storage.workplace import Owner

FORMAT = 1


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is kept and never offered. The label is "damaged" or "rolled-back"."""

    step: int
    label: str
    location: str


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, the locations of their objects, and the owner that may change them."""

    format: int = FORMAT
    holders: dict[str, tuple[int, int]] = {}
    """Time of submission (Unix ms) and generation that claimed the checkpoints, by job."""
    writer: tuple[str, int] | None = None
    """The submission that changes the checkpoints, by its job's name and time in ms; None: any may."""
    steps: dict[int, str] = {}
    set_aside: tuple[SetAside, ...] = ()

    def successor_of(self, owner: Owner) -> Owner | None:
        """Return the owner that has replaced this one, or None."""
        if not owner.job or owner.job not in self.holders:
            return None
        holder = Owner(owner.job, *self.holders[owner.job])
        return holder if owner.precedes(holder) else None

    def other_writer(self, owner: Owner) -> Owner | None:
        """Return the submission that has the checkpoints, if it is another one than this owner's."""
        if not owner.job or self.writer is None:
            return None
        writer = Owner(*self.writer)
        return None if writer.is_of_run(owner) else writer

    def locations(self) -> Iterator[str]:
        """The locations of the objects that must be kept."""
        yield from self.steps.values()
        yield from (aside.location for aside in self.set_aside)


def claimed(catalogue: Catalogue, owner: Owner) -> Catalogue:
    """Return the catalogue with this owner, unless a later one has it."""
    if not owner.job or catalogue.successor_of(owner):
        return catalogue
    return msgspec.structs.replace(catalogue, holders=catalogue.holders | {owner.job: owner[1:]})


def held(catalogue: Catalogue, owner: Owner, before: Owner | None) -> Catalogue:
    """Return the catalogue with this owner's submission as its writer, in place of `before` and of no other."""
    if catalogue.other_writer(owner) not in (None, before):
        return catalogue
    return msgspec.structs.replace(catalogue, writer=(owner.job, owner.submitted_ms))


def published(catalogue: Catalogue, step: int, location: str) -> Catalogue:
    """Return the catalogue with the step at this location, in place of an earlier one."""
    return msgspec.structs.replace(catalogue, steps=catalogue.steps | {step: location})


def moved_aside(catalogue: Catalogue, step: int, label: str) -> Catalogue:
    """Return the catalogue with a step set aside, so that it is not offered any more."""
    if step not in catalogue.steps:
        return catalogue
    aside = SetAside(step=step, label=label, location=catalogue.steps[step])
    steps = {other: location for other, location in catalogue.steps.items() if other != step}
    return msgspec.structs.replace(catalogue, steps=steps, set_aside=(*catalogue.set_aside, aside))


def retained(catalogue: Catalogue, outdated: Collection[int], set_aside_max: int) -> Catalogue:
    """Return the catalogue without outdated steps and with only the newest of those that were set aside."""
    aside = sorted(catalogue.set_aside, key=lambda aside: aside.step, reverse=True)[:set_aside_max]
    return msgspec.structs.replace(
        catalogue,
        steps={step: location for step, location in catalogue.steps.items() if step not in outdated},
        set_aside=tuple(kept_aside for kept_aside in catalogue.set_aside if kept_aside in aside),
    )


def next_location(catalogue: Catalogue, owner: Owner, step: int, apart: str = "") -> str:
    """Return the location where this owner writes the step: the same for all of its ranks, and never one in use."""
    prefix = f"{owner.name}/{apart}step-{step:08d}."
    taken = [int(location.removeprefix(prefix)) for location in catalogue.locations() if location.startswith(prefix)]
    return f"{prefix}{max(taken, default=0) + 1}"
