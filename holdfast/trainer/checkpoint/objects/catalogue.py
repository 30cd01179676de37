"""What an object store holds of a job's checkpoints, as one value, and what may become of it. Pure.

Objects can be neither renamed nor locked, so what counts is not where they lie but what the newest catalogue says; see
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
    """Which steps there are, where the objects of each lie, and whose they are to change."""

    format: int = FORMAT
    holders: dict[str, tuple[int, int]] = {}
    """By job: when it was submitted, in ms, and the generation that has claimed the checkpoints."""
    steps: dict[int, str] = {}
    set_aside: tuple[SetAside, ...] = ()

    def successor_of(self, owner: Owner) -> Owner | None:
        """Who has taken this owner's place, if anybody has."""
        if not owner.job or owner.job not in self.holders:
            return None
        holder = Owner(owner.job, *self.holders[owner.job])
        return holder if owner.precedes(holder) else None

    def locations(self) -> Iterator[str]:
        """Where the objects lie that must be kept."""
        yield from self.steps.values()
        yield from (aside.location for aside in self.set_aside)


def claimed(catalogue: Catalogue, owner: Owner) -> Catalogue:
    """Return the checkpoints are this owner's from now on, unless they are a later one's."""
    if not owner.job or catalogue.successor_of(owner):
        return catalogue
    return msgspec.structs.replace(catalogue, holders=catalogue.holders | {owner.job: owner[1:]})


def published(catalogue: Catalogue, step: int, location: str) -> Catalogue:
    """Return the step is what lies there; what it was before is not kept."""
    return msgspec.structs.replace(catalogue, steps=catalogue.steps | {step: location})


def moved_aside(catalogue: Catalogue, step: int, label: str) -> Catalogue:
    """Return the step is not offered any more."""
    if step not in catalogue.steps:
        return catalogue
    aside = SetAside(step=step, label=label, location=catalogue.steps[step])
    steps = {other: location for other, location in catalogue.steps.items() if other != step}
    return msgspec.structs.replace(catalogue, steps=steps, set_aside=(*catalogue.set_aside, aside))


def retained(catalogue: Catalogue, outdated: Collection[int], set_aside_max: int) -> Catalogue:
    """Steps that are outdated are not kept, and of those that were set aside only the newest."""
    aside = sorted(catalogue.set_aside, key=lambda aside: aside.step, reverse=True)[:set_aside_max]
    return msgspec.structs.replace(
        catalogue,
        steps={step: location for step, location in catalogue.steps.items() if step not in outdated},
        set_aside=tuple(kept_aside for kept_aside in catalogue.set_aside if kept_aside in aside),
    )


def next_location(catalogue: Catalogue, owner: Owner, step: int, apart: str = "") -> str:
    """Where this owner writes the step: all of its ranks find the same place, and never one that counts already."""
    prefix = f"{owner.name}/{apart}step-{step:08d}."
    taken = [int(location.removeprefix(prefix)) for location in catalogue.locations() if location.startswith(prefix)]
    return f"{prefix}{max(taken, default=0) + 1}"
