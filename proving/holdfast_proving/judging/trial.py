"""A policy on trial: the complaints that today's policy does not have either."""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from holdfast_proving.inside.cluster import PARTS, Cluster
from holdfast_proving.judging.complaints import Complaint
from holdfast_proving.judging.judges import judge
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import Policy
from holdfast_proving.policies.wrong_belief import HINTED
from holdfast_proving.policies.wrong_findings import FINDS
from holdfast_proving.policies.wrong_groups import GROUPS
from holdfast_proving.policies.wrong_record import OFFENDERS, RECORDS
from holdfast_proving.policies.wrong_silence import SILENCES
from holdfast_proving.policies.wrong_warm_up import WARM_UPS
from holdfast_proving.scenario.load import load_scenario

TRIALS = (
    "full",
    "two-at-once",
    "far-back",
    "passed",
    "prices",
    "each-start",
    "known-scratch",
    "known-creeping",
    "storm",
    "versions",
    "trial-inside",
    "late",
    "trial",
    "doubts",
)
"""Scenarios in which each wrong policy shows itself, at few events; the cheapest first."""

SHOWN_IN = {
    "full": """
        leaves_unreplaced evicts_without_replacement pauses_for_nothing restarts_twice hoards begins_late finds_late
    """,
    "two-at-once": "believes_one_test",
    "far-back": "never_settles compares_own_nodes",
    "lone-lemon": "stands_without",
    "passed": "replaces_what_has_passed",
    "each-start": "forgets_nodes",
    "prices": "waits_for_the_price expects_long_slowness",
    "known-scratch": "restarts_from_scratch restarts_by_the_clock",
    "known-creeping": """
        gives_up evicts_bystanders goes_back_each_time swaps_replace_evict evicts_others evicts_nobody
        no_breaker starts_from_scratch tests_bystanders swaps_reattempt_evict swaps_evict_stop restores_too_old
    """,
    "storm": """
        ignores_losses compares_names_only blocks_the_silent exchanges_all swaps_reattempt_stop
        blames_the_messenger compares_nothing does_not_wait declares_victory swaps_wait_evict
        swaps_stop_time_checks_evict remembers_what_was_shared
    """,
    "versions": """
        rolls_back_at_once doubts_good_code rolls_back_too_far blames_machines_for_code slow_to_blame
        blames_for_the_script gives_up_at_hangs ignores_hangs open_breaker stops_at_bad_numbers
        swaps_reattempt_replay swaps_rollback_stop_time_checks swaps_rollback_evict
        swaps_replace_stop_time_checks swaps_stop_time_checks_replay swaps_stop_time_checks_stop loses_updates
        updates_never_ride ignores_bad_numbers never_closes swaps_reattempt_rollback
        swaps_reattempt_stop_time_checks swaps_wait_rollback swaps_wait_stop_time_checks swaps_rollback_replace
        swaps_rollback_replay swaps_rollback_stop never_rolls_back trusts_the_first_step
        forgets_failures_of_code updates_at_once forgets_windows
    """,
    "trial-inside": """
        evicts_at_once never_checks disbelieves_checks believes_silent_checks restores_spoiled_steps
        goes_back_too_far forgets_copies plans_copies_once never_backs_up copies_into_own_rack
        keeps_no_clean_step never_replays disbelieves_replays evicts_of_the_group dawdles swaps_wait_replay
        swaps_replay_evict swaps_replay_stop swaps_replace_replay closes_at_a_certificate
    """,
    "late": "ignores_late_evidence checks_each_failure",
    "trial": """
        ignores_alerts ignores_slowness keeps_suspects guesses_one ignores_lost_peers waits_out_slowness
        never_stops ignores_slow_groups closes_at_once blocks_for_ever evicts_at_a_blink swaps_reattempt_wait
        swaps_replace_stop swaps_wait_stop
    """,
    "doubts": """
        blames_for_services never_waits believes_hints evicts_for_services
        hands_out_unfit_nodes ignores_suspicions ignores_repeated_alerts counts_past_slowness
        never_forgets_alerts pauses_for_long gives_up_at_outages restarts_at_hints ignores_confidence
        swaps_reattempt_replace swaps_wait_replace believes_words restarts_for_any_slowness
    """,
    "known-lemon": "forgets_records",
    "hangs-again": "forgets_hangs",
    "busy": "clears_the_late",
    "pair": "stops_at_clean_steps",
    "numbers-again": "forgets_bad_numbers",
    "crowded": "blames_for_processors excuses_neighbours",
    "innocents": "counts_explained counts_the_script counts_kills never_decays counts_silence records_each_alone",
    "nowhere": "evicts_for_what_all_lack believes_silent_warm_ups",
    "slow-again": "forgets_slowness",
    "repeated": "blocks_no_longer blocks_nobody",
    "group-again": """
        remembers_groups_for_ever blocks_the_stuck takes_back_untested exchanges_without_end believes_every_hang
    """,
    "known-spare": "stops_for_the_accused judges_before_tests asks_one_witness",
    "beside": "stops_for_tests repeats_tests_that_miss forgives_witnesses",
}
"""The trial that shows each policy: it is tried there first. Those left out are shown by the first of their trials."""

OF_THE_ANALYZER = ("analysis", "busy", "crowded", "pair")
"""The same for wrong findings: the engines of the analyzer are inside."""

OF_GROUPS = ("known-group", "group-without-spares", "group-again")
"""The same for groups of which one machine blocks the others."""
OF_HINTS = ("hints",)
"""The same for policies that judge hints wrongly."""

OF_RECORDS = ("known-spare", "hangs-again", "known-lemon", "lone-lemon", "innocents")
"""The same for records of nodes over incidents."""

OF_OFFENDERS = ("slow-again", "repeated", "beside")
"""The same for machines that come back."""

OF_WARM_UPS = ("broken-links", "nowhere", "newcomers")
"""The same for the warm-up of nodes."""

OF_SILENCES = ("silence",)
"""The same for silence of all nodes."""

OF_FAMILIES = (
    (SILENCES, OF_SILENCES),
    (GROUPS, OF_GROUPS),
    (HINTED, OF_HINTS),
    (RECORDS, OF_RECORDS),
    (OFFENDERS, OF_OFFENDERS),
    (WARM_UPS, OF_WARM_UPS),
    (FINDS, OF_THE_ANALYZER),
)

EVENTS_MULTIPLE, EVENTS_MIN = 2, 1_000
"""A simulation with more events than twice the oracle's, and these, is cut short: it restarts a job without end."""


def trials_of(policy: Policy) -> tuple[str, ...]:
    """Return the scenarios in which a policy is tried, first the one that shows it."""
    first = tuple(trial for trial, names in SHOWN_IN.items() if policy.name in names.split())
    more = next((trials for policies, trials in OF_FAMILIES if policy in policies), TRIALS)
    return tuple(dict.fromkeys((*first, *more)))


LOOKS = 25
"""Number of times that a trial is judged while it goes on: it is over with the first new complaint."""


@lru_cache(maxsize=64)
def oracle_of(scenario: str, seed: int) -> Cluster:
    """Return the oracle's simulation, which all policies of a trial are compared with."""
    return Cluster(load_scenario(scenario), seed, ORACLE).run()


def complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    if policy is ORACLE:
        return judge(oracle_of(scenario, seed))
    oracle = oracle_of(scenario, seed)
    return judge(Cluster(load_scenario(scenario), seed, policy).run(events_max=events_max(oracle)), oracle)


def new_complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    """Return the complaints about a policy that are not known of today's."""
    known = load_scenario(scenario).known_wrong
    return [it for it in complaints(policy, scenario, seed) if it.wrong not in known]


def first_complaints(policy: Policy, scenario: str, seed: int) -> list[Complaint]:
    """Return the new complaints about a policy by the first of several looks at a trial that has any."""
    plan, oracle = load_scenario(scenario), oracle_of(scenario, seed)
    cluster, found, asked = Cluster(plan, seed, policy), list[Complaint](), count(1)

    def look(oracle: Cluster | None = None) -> bool:
        found[:] = [it for it in judge(cluster, oracle) if it.wrong not in plan.known_wrong]
        return bool(found)

    cluster.run(events_max=events_max(oracle), is_enough=lambda: next(asked) % (PARTS // LOOKS) == 0 and look())
    if not found:
        look(oracle)
    return found


def events_max(oracle: Cluster) -> int:
    return EVENTS_MULTIPLE * len(oracle.log) + EVENTS_MIN
