"""The steps that the vaults of a job keep so that it can go back to before bad numbers (ADR 10).

There are two: the certified step, and a coming step that replaces it once it is certified and every node is known to
have it twice. The coming step is named far enough ahead that all nodes receive the order before they make it. What is
kept for it is the first step from there on that the script saves, however late that is. It is given up, and another one
is named, once a node's reports show that the node missed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import msgspec

from holdfast.events import StepsCertified
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.records import CertifiedSteps, HeldStep, JobBackups

GIVEN_UP_LEADS = 2
"""Lead times after a coming step until it may count as missed: its copies and their reports take a while."""


class Reports(NamedTuple):
    """Steps that nodes of a job reported in its present generation, by node rank."""

    coming: dict[int, int]
    """The step that node and keeper both have of the coming one."""
    newest: dict[int, int]
    """The newest step that node and keeper both have."""


def newer(before: CertifiedSteps | None, job: str, event: StepsCertified) -> CertifiedSteps | None:
    """Return what is certified after this event; None if it is not newer than `before`."""
    generation = event.generation or 0
    if before and (before.generation, before.step) >= (generation, event.step):
        return None
    return CertifiedSteps(job=job, generation=generation, step=event.step, certified_at=event.at)


def rotate(plan: JobBackups, event: StepsCertified, reports: Reports) -> JobBackups:
    """Return the plan with the steps to keep.

    `held` becomes the newest step that is certified and that all nodes have twice: the coming one, or the complete one
    (see `complete.py`).
    """
    if event.generation != plan.generation:
        return plan
    held, coming, complete = plan.held, plan.coming, plan.complete
    # The generation went back to before them: its steps of these numbers are other ones. A certificate below the held
    # one, if that is a step of this generation, is out of date.
    if held is not None and held.generation < plan.generation and held.step > event.step:
        held = None
    if complete is not None and complete.generation < plan.generation and complete.step > event.newest_step:
        complete = None
    if complete is not None and complete.generation == plan.generation and complete.step <= event.step:
        held = complete if held is None or held.age < complete.age else held
    lead = lead_steps(plan.step_s)
    if coming is not None and (made := _made(plan, coming, reports.coming, event.step - (lead or 0))) is not None:
        if made <= event.step:
            held, coming = HeldStep(generation=plan.generation, step=made), None
    elif coming is not None and lead is not None:
        is_late = event.newest_step >= coming + GIVEN_UP_LEADS * lead
        coming = None if is_late and is_missed(plan, coming, reports, GIVEN_UP_LEADS * lead) else coming
    if coming is None and lead is not None:
        coming = ceil((event.newest_step + lead) / plan.named_every) * plan.named_every
    if (held, coming, complete) == (plan.held, plan.coming, plan.complete):
        return plan
    return msgspec.structs.replace(plan, held=held, coming=coming, complete=complete, ordered_by=event.id)


def announce(
    before: JobBackups, after: JobBackups, known: CertifiedSteps | None, on_disk: Iterable[int], decision: str
) -> JobBackups:
    """Return `after` with the newest certified step, which nodes need when they drop steps on the disk. It is a new
    order only if a step on the disk lies between what `before` announced and what is known, or if the generation went
    back.
    """
    if known is None or known.generation != after.generation:
        return after
    announced = -1 if before.certified_up_to is None else before.certified_up_to
    is_outdated = known.step < announced or any(announced < step <= known.step for step in on_disk)
    if after == before and not is_outdated:
        return after
    return msgspec.structs.replace(after, certified_up_to=known.step, ordered_by=decision)


def still_certified(up_to: int | None, restore_at_most: int | None) -> int | None:
    """Return the newest certified step for the next generation, which restores no step above its limit."""
    return up_to if up_to is None or restore_at_most is None else min(up_to, restore_at_most)


def still_held(held: HeldStep | None, restore_at_most: int | None) -> HeldStep | None:
    """Return the step to keep for the next generation; None if it is above the generation's limit."""
    return None if held and restore_at_most is not None and held.step > restore_at_most else held


def made_by_all(plan: JobBackups, coming: int, kept: Mapping[int, int]) -> int | None:
    """Return the step that was made for the coming one, if all senders have the same one twice."""
    steps = {kept.get(rank, -1) for rank in senders(plan)}
    return steps.pop() if len(steps) == 1 and min(steps) >= coming else None


def is_missed(plan: JobBackups, coming: int, reports: Reports, after: int) -> bool:
    """Return True if a node has made a step from the coming one on that it did not keep for it, or another than others.

    A script may save one step in a thousand. How many steps have passed shows nothing, and waiting costs no memory. But
    if nodes keep steps that are more than `after` steps past the one that was kept for it, one that has not reported
    that has no copies of any.
    """
    ranks = senders(plan)
    kept = [reports.coming.get(rank, -1) for rank in ranks]
    if kept and min(kept) >= coming:
        return len(set(kept)) > 1
    first = min((step for step in kept if step >= coming), default=None)
    if first is not None and max(reports.newest.values(), default=-1) > first + after:
        return True
    return any(reports.newest.get(rank, -1) >= coming > step for rank, step in zip(ranks, kept, strict=True))


def _made(plan: JobBackups, coming: int, kept: Mapping[int, int], long_certified: int) -> int | None:
    if senders(plan):
        return made_by_all(plan, coming, kept)
    # No node reports copies: the step counts as made once it is long past.
    return coming if coming <= long_certified else None


def senders(plan: JobBackups) -> list[int]:
    """Return the node ranks whose copies another node keeps."""
    return [rank for rank, keeper in enumerate(plan.layout.keepers) if keeper is not None]
