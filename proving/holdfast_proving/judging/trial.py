"""A policy on trial: the complaints that today's policy does not have either."""

from __future__ import annotations

from functools import lru_cache

from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.complaints import Complaint
from holdfast_proving.judging.judges import judge
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import Policy
from holdfast_proving.policies.wrong_belief import HINTED
from holdfast_proving.policies.wrong_findings import FINDS
from holdfast_proving.policies.wrong_groups import GROUPS
from holdfast_proving.policies.wrong_record import RECORDS
from holdfast_proving.policies.wrong_warm_up import WARM_UPS
from holdfast_proving.scenario.load import load_scenario

TRIALS = ("full", "known-scratch", "known-creeping", "storm", "versions", "trial-inside", "late", "trial", "doubts")
"""Scenarios in which each wrong policy shows itself, at few events; the cheapest first."""

SHOWN_IN = {
    "versions": """
        rolls_back_at_once doubts_good_code rolls_back_too_far blames_machines_for_code slow_to_blame
        blames_for_the_script gives_up_at_hangs ignores_hangs forgets_nodes blocks_nobody
    """,
    "trial-inside": """
        evicts_at_once never_checks disbelieves_checks believes_silent_checks restores_spoiled_steps goes_back_too_far
        forgets_copies plans_copies_once never_backs_up copies_into_own_rack keeps_no_clean_step never_replays
        disbelieves_replays evicts_of_the_group dawdles swaps_wait_replay swaps_replay_evict swaps_replay_stop
        swaps_replace_replay
    """,
    "late": "ignores_late_evidence",
    "trial": """
        ignores_alerts ignores_slowness keeps_suspects guesses_one ignores_lost_peers waits_out_slowness never_stops
        ignores_slow_groups closes_at_once blocks_for_ever evicts_at_a_blink swaps_reattempt_wait
        swaps_replace_stop swaps_wait_stop
    """,
    "doubts": """
        blames_for_services never_waits believes_hints believes_every_hang evicts_for_services hands_out_unfit_nodes
        ignores_suspicions ignores_repeated_alerts counts_past_slowness never_forgets_alerts pauses_for_long
        gives_up_at_outages restarts_at_hints ignores_confidence swaps_reattempt_replace swaps_wait_replace
    """,
}
"""Trials that show policies which cheaper ones do not: these are tried there first."""

OF_THE_ANALYZER = ("analysis",)
"""The same for wrong findings: the engines of the analyzer are inside."""

OF_GROUPS = ("known-group", "group-without-spares")
"""The same for groups of which one machine blocks the others."""
OF_HINTS = ("hints",)
"""The same for policies that judge hints wrongly."""

OF_RECORDS = ("known-spare", "known-lemon", "innocents")
"""The same for records of nodes over incidents."""

OF_WARM_UPS = ("newcomers", "nowhere")
"""The same for the warm-up of nodes."""

EVENTS_MULTIPLE, EVENTS_MIN = 2, 1_000
"""A simulation with more events than twice the oracle's, and these, is cut short: it restarts a job without end."""


def trials_of(policy: Policy) -> tuple[str, ...]:
    """Return the scenarios in which a policy is tried."""
    if policy in GROUPS:
        return OF_GROUPS
    if policy in HINTED:
        return OF_HINTS
    if policy in RECORDS:
        return OF_RECORDS
    if policy in WARM_UPS:
        return OF_WARM_UPS
    if policy in FINDS:
        return OF_THE_ANALYZER
    first = tuple(trial for trial, names in SHOWN_IN.items() if policy.name in names.split())
    return tuple(dict.fromkeys((*first, *TRIALS)))


@lru_cache(maxsize=64)
def oracle_of(scenario: str, seed: int) -> Cluster:
    """Return the oracle's simulation, which all policies of a trial are compared with."""
    return Cluster(load_scenario(scenario), seed, ORACLE).run()


def complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    if policy is ORACLE:
        return judge(oracle_of(scenario, seed))
    oracle = oracle_of(scenario, seed)
    events_max = EVENTS_MULTIPLE * len(oracle.log) + EVENTS_MIN
    return judge(Cluster(load_scenario(scenario), seed, policy).run(events_max=events_max), oracle)


def new_complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    """Return the complaints about a policy that are not known of today's."""
    known = load_scenario(scenario).known_wrong
    return [it for it in complaints(policy, scenario, seed) if it.wrong not in known]
