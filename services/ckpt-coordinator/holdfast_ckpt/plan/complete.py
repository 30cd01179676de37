"""The newest step that all nodes of a job are known to have twice, kept in memory until there is a newer one.

If several ranks and vaults are lost at once, the newest steps of the others may have no step in common. The complete
step is the floor: the job does not go back further. It is the coming step (see `certified`) as soon as all nodes have
reported that their keepers have it, certified or not. While it waits to be certified, no other one takes its place for
a while, because it would then never become the step to go back to after bad numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import msgspec

from holdfast_ckpt.plan.certified import made_by_all
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.records import CertifiedSteps, HeldStep, JobBackups

PATIENCE_LEADS = 8
"""Lead times for which a complete step waits to be certified: numbers that are only suspicious must not make it old."""

GIVEN_UP_LEADS = 4
"""Lead times after a coming step until it counts as missed: its copies and their reports take a while."""


def advance(
    plan: JobBackups, newest_step: int, kept: Mapping[int, int], known: CertifiedSteps | None, decision: str
) -> JobBackups:
    """Return the plan with the coming step as the complete one once all nodes have it twice, and the next one named.

    `kept`: the step that node and keeper both have of the coming one; `known`: what is certified.
    """
    lead = lead_steps(plan.step_s)
    if lead is None:
        return plan
    coming, complete = plan.coming, plan.complete
    if coming is not None and (made := made_by_all(plan, coming, kept)) is not None:
        if _awaits_certification(plan, newest_step, known, lead):
            return plan
        coming, complete = None, HeldStep(generation=plan.generation, step=made)
    elif coming is not None and newest_step >= coming + GIVEN_UP_LEADS * lead:
        coming = None  # a node missed the order
    if coming is None:
        # Reports are two seconds old, and the order must arrive before the step is made.
        coming = ceil((newest_step + 2 * lead) / plan.every) * plan.every
    if (coming, complete) == (plan.coming, plan.complete):
        return plan
    return msgspec.structs.replace(plan, coming=coming, complete=complete, ordered_by=decision)


def _awaits_certification(plan: JobBackups, newest_step: int, known: CertifiedSteps | None, lead: int) -> bool:
    complete = plan.complete
    if complete is None or complete.generation != plan.generation:
        return False
    if known is None or known.generation != plan.generation:
        return False  # nothing of this generation is certified at all: a script may report no numbers
    return complete.step > known.step and newest_step < complete.step + PATIENCE_LEADS * lead
