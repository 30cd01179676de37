"""Judges of checkpoints: a job goes back to the newest sound step that there is, and copies survive what they can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History
from holdfast_proving.scenario.scenario import JobPlan
from holdfast_proving.world.checkpoints import CERTIFIED_AFTER, Restore, cycle_steps, saved_every

COPIED_WITHIN_S = 60.0
"""A step that is older is in the memory of another machine, or on its way back from there."""


def lost_steps(history: History) -> Iterator[Complaint]:
    """Complain about starts that went back further than to the newest sound step that still existed whole."""
    for training in history.cluster.trainings:
        for restore in training.checkpoints.restores:
            allowed = _rewind_steps(training.plan, restore) if _is_spoiled(history, restore) else 0
            if restore.step < restore.whole - allowed:
                text = f"it went on from step {restore.step}, and step {restore.whole} was there"
                yield Complaint(wrong=Wrong.STEPS_THROWN_AWAY, at_s=restore.at_s, job=restore.job, text=text)


def forgotten_steps(history: History) -> Iterator[Complaint]:
    """Complain about bad numbers before which no certified step had been kept in memory."""
    for training in history.cluster.trainings:
        if training.plan.keeps != "memory":
            continue
        for restore in training.checkpoints.restores:
            back = restore.made - restore.step
            is_judged = restore.was_watched and not restore.lost and _is_spoiled(history, restore)
            if is_judged and back > rewind_steps(training.plan.step_s):
                text = f"no certified step was kept: it went back from step {restore.made} to {restore.step}"
                yield Complaint(wrong=Wrong.NOTHING_KEPT, at_s=restore.at_s, job=restore.job, text=text)


def lost_copies(history: History) -> Iterator[Complaint]:
    """Complain about steps that were gone with one machine or one rack, though other machines could have had them."""
    for training in history.cluster.trainings:
        if training.plan.keeps != "memory":
            continue
        for before, restore in pairwise(training.checkpoints.restores):
            step_s, members = training.plan.step_s, history.members(restore.job, before.at_s)
            lost_s = (restore.made - restore.whole) * step_s
            allowed_s = COPIED_WITHIN_S + 2.0 * training.plan.copy_s + 2.0 * step_s
            if not restore.lost or restore.at_most is not None or lost_s <= allowed_s:
                continue
            if before.job == restore.job and _could_survive(history, members, restore.lost):
                text = f"{lost_s:.0f} s of training were in the memory of {', '.join(restore.lost)} alone"
                yield Complaint(wrong=Wrong.NO_COPIES, at_s=restore.at_s, job=restore.job, text=text)


def rewind_steps(step_s: float) -> int:
    """Return how far a job may go back before bad numbers: to the last but one step that was kept to go back to."""
    return CERTIFIED_AFTER + 2 * cycle_steps(step_s)


def _rewind_steps(plan: JobPlan, restore: Restore) -> int:
    """Return how far the start may go back before bad numbers; a step on the disk may have had no certificate yet."""
    is_early = plan.keeps == "disk" and restore.whole >= restore.made - CERTIFIED_AFTER
    return max(rewind_steps(plan.step_s), saved_every(plan) if is_early else 0)


def _is_spoiled(history: History, restore: Restore) -> bool:
    """Return True if bad numbers limited what a start could restore."""
    shown = (it for it in history.ledger.showings if it.job == restore.job and it.at_s < restore.at_s)
    return restore.at_most is not None and any(
        history.ledger.records[it.fault].fault.kind.shows_in_numbers for it in shown
    )


def _could_survive(history: History, members: tuple[str, ...], lost: tuple[str, ...]) -> bool:
    """Return True if some placement of copies outlives the loss of these machines: of one, or within one rack."""
    racks = Counter(history.cluster.machines[machine].rack for machine in members)
    lost_racks = {history.cluster.machines[machine].rack for machine in lost}
    if len(lost) == 1:
        return len(members) > 1
    return len(lost_racks) == 1 and 2 * max(racks.values(), default=0) <= len(members)
