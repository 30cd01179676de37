"""Bounds of what may be lost, relative to the oracle under the same faults."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.truth.generator import DAY_S
from holdfast_proving.world.training import Training

ORACLE_MULTIPLE = 2.0
SLACK_S_PER_DAY = 900.0
"""Lost time may exceed the oracle's by this factor, and this much for each day of a job that states no bound."""

WAITING_S_PER_DAY = 3600.0
"""The same for time without enough machines: one that comes back from the blocklist an hour later."""

RESTARTS_MULTIPLE = 4
RESTARTS_PER_DAY = 4.0
"""To learn who is at fault takes some restarts that the oracle does without."""


def beyond_the_oracle(cluster: Cluster, oracle: Cluster) -> Iterator[Complaint]:
    """Complain about time, machines and restarts that were lost beyond the bounds, and about trainings without end."""
    for ours, best in zip(cluster.trainings, oracle.trainings, strict=True):
        job, days = ours.plan.name, ours.book.total_s / DAY_S
        allowed_s = ORACLE_MULTIPLE * _lost_s(best) + SLACK_S_PER_DAY * days
        if (more_s := ours.plan.beyond_oracle_s) is not None:
            allowed_s = _lost_s(best) + more_s
        if _lost_s(ours) > allowed_s:
            text = f"{_lost_s(ours):.0f} s were lost, and {_lost_s(best):.0f} s by the oracle"
            yield Complaint(wrong=Wrong.TOO_COSTLY, at_s=cluster.agenda.seconds, job=job, text=text)
        if _waited_s(ours) > ORACLE_MULTIPLE * _waited_s(best) + WAITING_S_PER_DAY * days:
            text = f"it waited {_waited_s(ours):.0f} s for machines, and {_waited_s(best):.0f} s under the oracle"
            yield Complaint(wrong=Wrong.WAITED_TOO_LONG, at_s=cluster.agenda.seconds, job=job, text=text)
        # The oracle evicts nodes that nothing replaces as well: a job that stands does not start.
        stood_s = _waited_s(best) - _waited_s(ours)
        restarts_max = RESTARTS_MULTIPLE * len(best.starts) + RESTARTS_PER_DAY * ceil(days)
        if len(ours.starts) > restarts_max and stood_s < WAITING_S_PER_DAY * days:
            text = f"it began {len(ours.starts)} times, and {len(best.starts)} times under the oracle"
            yield Complaint(wrong=Wrong.TOO_MANY_RESTARTS, at_s=cluster.agenda.seconds, job=job, text=text)
        late_s = (best.completed_s or float("inf")) + allowed_s + WAITING_S_PER_DAY * days
        if ours.completed_s is None and late_s < cluster.agenda.seconds:
            text = f"the oracle completed it at {best.completed_s:.0f} s"
            yield Complaint(wrong=Wrong.NOT_COMPLETED, at_s=cluster.agenda.seconds, job=job, text=text)


def _lost_s(training: Training) -> float:
    return training.book.lost_s - _waited_s(training)


def _waited_s(training: Training) -> float:
    return training.book.spent_s.get("waiting_for_machines", 0.0)
