"""All judges, and the bound against the oracle."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging import blame, course
from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.history import History

JUDGES = (
    blame.innocents,
    blame.storms,
    blame.culprits,
    blame.alerts,
    blame.slow_ones,
    course.given_up,
    course.retries,
    course.stalls,
    course.loops,
    course.poison,
    course.sacrifices,
)

ORACLE_MULTIPLE = 2.0
SLACK_S_PER_DAY = 900.0
"""Lost time may exceed the oracle's by this factor, and this much for each day of a job."""


def judge(cluster: Cluster, oracle: Cluster | None = None) -> list[Complaint]:
    """Return all complaints in the order of time. `oracle`: the same scenario and seed, for the bound of lost time."""
    history = History(cluster)
    found = [complaint for judge in JUDGES for complaint in judge(history)]
    if oracle is not None:
        found += _too_costly(cluster, oracle)
    return sorted(found, key=lambda complaint: complaint.at_s)


def _too_costly(cluster: Cluster, oracle: Cluster) -> Iterator[Complaint]:
    for ours, best in zip(cluster.trainings, oracle.trainings, strict=True):
        days = ours.book.total_s / 86400.0
        allowed_s = ORACLE_MULTIPLE * best.book.lost_s + SLACK_S_PER_DAY * days
        if ours.book.lost_s > allowed_s:
            text = f"{ours.book.lost_s:.0f} s were lost, and {best.book.lost_s:.0f} s by the oracle"
            yield Complaint(wrong=Wrong.TOO_COSTLY, at_s=cluster.agenda.seconds, job=ours.plan.name, text=text)
