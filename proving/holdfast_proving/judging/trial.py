"""A policy on trial: the complaints that today's policy does not have either."""

from __future__ import annotations

from functools import lru_cache

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.complaints import Complaint
from holdfast_proving.judging.judges import judge
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import Policy
from holdfast_proving.policies.wrong_findings import FINDS
from holdfast_proving.policies.wrong_groups import GROUPS
from holdfast_proving.scenario.load import load_scenario

TRIALS = ("trial", "storm", "full", "known-scratch", "known-creeping", "doubts", "late", "trial-inside")
"""Scenarios in which each wrong policy shows itself, at few events."""

OF_THE_ANALYZER = ("analysis",)
"""The same for wrong findings: the engines of the analyzer are inside."""

OF_GROUPS = ("known-group", "group-without-spares")
"""The same for groups of which one machine blocks the others."""

EVENTS_MAX = 10_000
"""Several times what the longest of them has under today's policy."""


def trials_of(policy: Policy) -> tuple[str, ...]:
    """Return the scenarios in which a policy is tried."""
    if policy in GROUPS:
        return OF_GROUPS
    return OF_THE_ANALYZER if policy in FINDS else TRIALS


@lru_cache(maxsize=64)
def oracle_of(scenario: str, seed: int) -> Cluster:
    """Return the oracle's simulation, which all policies of a trial are compared with."""
    return Cluster(load_scenario(scenario), seed, ORACLE).run()


def complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    cluster = Cluster(load_scenario(scenario), seed, policy).run(events_max=EVENTS_MAX)
    return judge(cluster, oracle_of(scenario, seed))


def new_complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    """Return the complaints about a policy that are not known of today's."""
    known = load_scenario(scenario).known_wrong
    return [it for it in complaints(policy, scenario, seed) if it.wrong not in known]
