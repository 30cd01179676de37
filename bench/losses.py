"""Comparison of a disturbed training with an undisturbed one: every loss of every step, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from launchers import Place, torchrun
from records import Records

START_S = 120.0


class Comparison(NamedTuple):
    """Steps compared on all ranks and in all generations; those whose loss differs; those that no note tells of.

    `notes_cut_off` are steps that a rank had done, since the others had its gradients and rank 0 had saved them, but
    was killed before it noted them: just after a checkpoint, or at the job's end.
    """

    compared: int
    different: int
    missing: int
    notes_cut_off: int


def undisturbed(root: Path, world_size: int, steps: int, *shape: str) -> Records:
    """The same training under torchrun, without a fault."""
    place = Place.fresh(root, "undisturbed")
    records = Records(place.record, world_size)
    with torchrun(world_size, place, *shape, steps=steps, restarts=0):
        records.await_generation(START_S)
        records.await_end(START_S + 0.2 * steps)
    return records


def compare(disturbed: Records, reference: Records, *, saved_every: int) -> Comparison:
    """Every step of the disturbed training with the same step of the undisturbed one."""
    compared = different = missing = cut_off = 0
    for rank, (lives, reference_lives) in enumerate(zip(disturbed.lives, reference.lives, strict=True)):
        expected = {step.number: step.loss for step in reference_lives[-1].steps}
        trained = [step for life in lives for step in life.steps if step.number in expected]
        compared += len(trained)
        different += sum(step.loss != expected[step.number] for step in trained)
        for number in expected.keys() - {step.number for step in trained}:
            # Rank 0 notes a step before it saves it.
            if rank and (number % saved_every == 0 or number == max(expected)):
                cut_off += 1
            else:
                missing += 1
    return Comparison(compared, different, missing, cut_off)
