"""The newest step that all nodes of a job are known to have twice, kept in memory until there is a newer one.

If several ranks and vaults are lost at once, the newest steps of the others may have no step in common. The complete
step is the floor: the job does not go back further. It is the coming step (see `certified.py`) as soon as all nodes
have reported that their keepers have it, certified or not. While it waits to be certified, no other one takes its place
for a while, because it would then never become the step to go back to after bad numbers.

So the complete step may be half a minute old. When a node reports that its ranks keep no steps, the newest step that
its keeper has is frozen: all nodes still have it, because training waits for a moment, and they keep it until every
node has reported a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import msgspec

from holdfast.events import KeepingInterrupted
from holdfast_ckpt.plan.certified import Reports, is_missed, made_by_all, senders
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.records import CertifiedSteps, HeldShards, HeldStep, JobBackups

PATIENCE_LEADS = 8
"""Lead times for which a complete step waits to be certified: numbers that are only suspicious must not make it old."""

GIVEN_UP_LEADS = 4
"""Lead times after a coming step until it may count as missed: its copies and their reports take a while."""


def advance(
    plan: JobBackups, newest_step: int, reports: Reports, known: CertifiedSteps | None, decision: str
) -> JobBackups:
    """Return the plan with the coming step as the complete one once all nodes have it twice, and the next one named.

    `known`: what is certified.
    """
    lead = lead_steps(plan.step_s)
    if lead is None:
        return plan
    coming, complete = plan.coming, plan.complete
    if coming is not None and (made := made_by_all(plan, coming, reports.coming)) is not None:
        if _awaits_certification(plan, newest_step, known, lead):
            return plan
        coming, complete = None, HeldStep(generation=plan.generation, step=made)
    elif coming is not None and newest_step >= coming + GIVEN_UP_LEADS * lead:
        coming = None if is_missed(plan, coming, reports, GIVEN_UP_LEADS * lead) else coming
    if coming is None:
        # Reports are two seconds old, and the order must arrive before the step is made.
        coming = ceil((newest_step + 2 * lead) / plan.named_every) * plan.named_every
    if (coming, complete) == (plan.coming, plan.complete):
        return plan
    return msgspec.structs.replace(plan, coming=coming, complete=complete, ordered_by=decision)


def freeze(plan: JobBackups, event: KeepingInterrupted, decision: str) -> JobBackups:
    """Return the plan with the event's step frozen, unless there is none, or one of this generation is frozen already:
    that one all nodes had, of a later one it is not known.
    """
    generation, frozen = event.generation or 0, plan.frozen
    if event.step < 0 or generation != plan.generation or (frozen is not None and frozen.generation == generation):
        return plan
    return msgspec.structs.replace(
        plan,
        frozen=HeldStep(generation=generation, step=event.step),
        frozen_until=event.step if event.not_kept is None else event.not_kept,
        ordered_by=decision,
    )


def release(plan: JobBackups, held: Mapping[int, HeldShards], decision: str) -> JobBackups:
    """Return the plan without its frozen step once all nodes have reported that they keep steps again."""
    if plan.frozen is None:
        return plan
    until = plan.frozen.generation, plan.frozen_until
    if not all(rank in held and held[rank].age > until for rank in senders(plan)):
        return plan
    return msgspec.structs.replace(plan, frozen=None, frozen_until=0, ordered_by=decision)


def _awaits_certification(plan: JobBackups, newest_step: int, known: CertifiedSteps | None, lead: int) -> bool:
    complete = plan.complete
    if complete is None or complete.generation != plan.generation:
        return False
    if known is None or known.generation != plan.generation:
        return False  # nothing of this generation is certified at all: a script may report no numbers
    return complete.step > known.step and newest_step < complete.step + PATIENCE_LEADS * lead
