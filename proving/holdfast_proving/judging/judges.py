"""All judges."""

from __future__ import annotations

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging import blame, bounds, course, restarts, warnings
from holdfast_proving.judging.complaints import Complaint
from holdfast_proving.judging.history import History

JUDGES = (
    blame.innocents,
    blame.storms,
    blame.culprits,
    blame.exchanges,
    warnings.certain,
    warnings.repeated,
    warnings.before_crashes,
    warnings.of_newcomers,
    blame.slow_ones,
    course.given_up,
    course.false_ends,
    course.retries,
    course.stalls,
    course.loops,
    course.poison,
    course.pauses,
    course.sacrifices,
    restarts.needless,
    restarts.too_far_back,
    restarts.from_spoiled_steps,
)


def judge(cluster: Cluster, oracle: Cluster | None = None) -> list[Complaint]:
    """Return all complaints in the order of time. `oracle`: the same scenario and seed, for bounds of what is lost."""
    history = History(cluster)
    found = [complaint for judge in JUDGES for complaint in judge(history)]
    if oracle is not None:
        found += bounds.beyond_the_oracle(cluster, oracle)
    return sorted(found, key=lambda complaint: complaint.at_s)
