"""Which steps the vaults of a job keep so that it can go back behind bad numbers (ADR 10). Pure.

Two: the certified one, and a coming one that takes its place when it is certified and every node is known to have it
twice. A coming step is named far enough ahead that all nodes hear of it before they make it. One that somebody missed
is given up, and another is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import msgspec

from holdfast.events import StepsCertified
from holdfast_ckpt.plan.checkpoint_state import CertifiedSteps, HeldStep, JobBackups
from holdfast_ckpt.plan.lead_time import lead_steps


def heard(before: CertifiedSteps | None, event: StepsCertified) -> CertifiedSteps | None:
    """What is certified now; None: that is old news."""
    assert event.job is not None
    generation = event.generation or 0
    if before and (before.generation > generation or (before.generation == generation and before.step >= event.step)):
        return None
    return CertifiedSteps(job=event.job, generation=generation, step=event.step, certified_at=event.at)


def rotated(plan: JobBackups, event: StepsCertified, kept: Mapping[int, int]) -> JobBackups:
    """The plan with the steps that are to stay now. `kept` is what node ranks have twice of the coming one."""
    if event.generation != plan.generation:
        return plan
    held, coming = plan.held, plan.coming
    if held is not None and held.step > event.step:
        # The generation went back behind it: what it makes of that number is another step.
        held = None
    lead = lead_steps(plan.step_s)
    if coming is not None and (made := _made(plan, coming, kept, event.step - (lead or 0))) is not None:
        if made <= event.step:
            held, coming = HeldStep(generation=plan.generation, step=made), None
    elif coming is not None and lead is not None and event.newest_step >= coming + 2 * lead:
        coming = None
    if coming is None and lead is not None:
        coming = ceil((event.newest_step + lead) / plan.every) * plan.every
    if (held, coming) == (plan.held, plan.coming):
        return plan
    return msgspec.structs.replace(plan, held=held, coming=coming, ordered_by=event.id)


def told(
    before: JobBackups, after: JobBackups, known: CertifiedSteps | None, on_disk: Iterable[int], decision: str
) -> JobBackups:
    """What nodes are told instead of `before`: `after`, and what is certified, for they drop steps on the disk.

    That makes a difference to them only where a step on the disk lies between what they were told and what is known,
    or where a generation went back.
    """
    if known is None or known.generation != after.generation:
        return after
    heard_of = -1 if before.certified_up_to is None else before.certified_up_to
    is_outdated = known.step < heard_of or any(heard_of < step <= known.step for step in on_disk)
    if after == before and not is_outdated:
        return after
    return msgspec.structs.replace(after, certified_up_to=known.step, ordered_by=decision)


def still_certified(up_to: int | None, restore_at_most: int | None) -> int | None:
    """Up to where steps on the disk are certified as far as the next generation is concerned."""
    return up_to if up_to is None or restore_at_most is None else min(up_to, restore_at_most)


def still_held(held: HeldStep | None, restore_at_most: int | None) -> HeldStep | None:
    """What stays for the next generation: nothing above its limit."""
    return None if held and restore_at_most is not None and held.step > restore_at_most else held


def _made(plan: JobBackups, coming: int, kept: Mapping[int, int], long_certified: int) -> int | None:
    """The step that was made where the coming one was named, if all who send copies have the same one twice."""
    senders = [rank for rank, keeper in enumerate(plan.layout.keepers) if keeper is not None]
    if not senders:
        # Nobody reports. All that is known is that it is long past.
        return coming if coming <= long_certified else None
    steps = {kept.get(rank, -1) for rank in senders}
    return steps.pop() if len(steps) == 1 and min(steps) >= coming else None
