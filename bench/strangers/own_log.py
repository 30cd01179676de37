"""What a script itself noted of its steps and losses: the truth that Holdfast's words are compared with."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from strangers.cases import Case


class Note(NamedTuple):
    """A line of the log: the number of the step as the script counts over its whole life, and the loss as written."""

    step: int
    loss: str


class Restart(NamedTuple):
    """A place in the log where a later process went on: the last step before, and the first after it."""

    last: int
    first: int

    @property
    def lost(self) -> int:
        return self.last - self.first + 1


def read_notes(case: Case, path: Path) -> list[Note]:
    """Read the whole lines of a log; none if it is not there."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    notes = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        found = case.line.match(line)
        if found is not None:
            epoch = int(found["epoch"]) if case.per_epoch else 0
            notes.append(Note(epoch * case.per_epoch + int(found["step"]), found["loss"]))
    return notes


def restarts(notes: list[Note]) -> list[Restart]:
    """Return where the numbers of a log begin again."""
    pairs = itertools.pairwise(notes)
    return [Restart(before.step, after.step) for before, after in pairs if after.step <= before.step]


def same_losses(reference: list[Note], notes: list[Note]) -> tuple[int, int]:
    """Return how many notes have the digits of the reference, and how many have others."""
    wanted = {note.step: note.loss for note in reference}
    same = sum(wanted.get(note.step) == note.loss for note in notes)
    return same, len(notes) - same
