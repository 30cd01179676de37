"""All judges."""

from __future__ import annotations

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging import (
    blame,
    bounds,
    course,
    found,
    groups,
    kept_steps,
    restarts,
    returns,
    versions,
    warnings,
)
from holdfast_proving.judging.complaints import Complaint
from holdfast_proving.judging.history import History

JUDGES = (
    blame.innocents,
    blame.storms,
    blame.culprits,
    blame.unreplaced,
    blame.exchanges,
    returns.failed_tests,
    returns.repeated_offenders,
    returns.missed_twice,
    returns.slow_again,
    returns.needless_tests,
    returns.tests_for_accusations,
    groups.kept_groups,
    groups.unreplaced_groups,
    warnings.certain,
    warnings.repeated,
    warnings.before_crashes,
    warnings.accused,
    warnings.of_newcomers,
    blame.slow_ones,
    blame.hot_ones,
    course.given_up,
    course.false_ends,
    course.retries,
    course.stalls,
    course.loops,
    course.poison,
    course.pauses,
    course.sacrifices,
    course.hasty,
    course.waited_out,
    restarts.needless,
    restarts.from_spoiled_steps,
    restarts.from_corrupt_steps,
    kept_steps.lost_steps,
    kept_steps.forgotten_steps,
    kept_steps.lost_copies,
    versions.bad_code,
    versions.good_code,
    versions.rollbacks,
    versions.updates,
)

OF_FINDINGS = (
    found.hangs,
    found.devices,
    found.slowness,
    found.innocents,
    found.cleared,
    found.relief,
    found.passed_slowness,
    found.bad_numbers,
    found.drift,
    found.false_alarms,
)
"""Judges of the production analyzer, where it is inside."""


def judge(cluster: Cluster, oracle: Cluster | None = None) -> list[Complaint]:
    """Return all complaints in the order of time. `oracle`: the same scenario and seed, for bounds of what is lost."""
    history = History(cluster)
    judges = JUDGES + OF_FINDINGS if history.scenario.analyzer == "engines" else JUDGES
    complaints = [complaint for judge in judges for complaint in judge(history)]
    if oracle is not None:
        complaints += bounds.beyond_the_oracle(cluster, oracle)
    return sorted(complaints, key=lambda complaint: complaint.at_s)
