"""Jobs that stand still for what lies between nodes, before their first step, or with nobody to blame. Minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster
from hang_cases import BEFORE_THE_FIRST_STEP, CASES, GUILTY, STRIKES_AT, end, outcome, start, strike
from job import Job
from records import check_record, timeline

from holdfast.faults.requirements import Requirement, lacking

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

NODES = 6
"""Three for a job, two that take the place of a pair of them, and one to test that pair with."""

QUICK = {
    "HOLDFAST_HANG_UNNAMED_S": "8",
    "HOLDFAST_HANG_START_WAITING_S": "6",
    "HOLDFAST_HANG_RESTART_S": "12",
    "HOLDFAST_HANG_RESTART_WAITING_S": "8",
}
"""Where a start may take minutes, these tests are not to."""

MENDED_WITHIN_S = 240.0
"""Two hangs, checks of the network whose limits have to pass, and on a busy machine."""


@pytest.fixture(scope="module")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := lacking(Requirement.LINKS) or lacking(Requirement.MOUNT):
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("apart"), NODES, QUICK, namespaces=True) as running:
        yield running


@pytest.fixture
def apart(_apart: Cluster) -> Iterator[Cluster]:
    _apart.make_whole()
    yield _apart
    _apart.command("inject", "--undo", check=False)


def cut(cluster: Cluster, node: str, *others: str) -> None:
    """`node` and each of the others cannot reach each other any more."""
    for other in others:
        cluster.command("inject", "cut", "--node", node, "-o", f"off={other}")


def trains_again(cluster: Cluster, job: Job, are_good: Callable[[list[str]], bool]) -> None:
    """Wait until the job trains past where it was struck, on such nodes, and its incident is over."""
    job.until(
        "it trains on other nodes",
        lambda: are_good(cluster.members(job)) and job.generation() >= 2 and job.step() > STRIKES_AT + 1,
        MENDED_WITHIN_S,
    )
    cluster.until("the incident is over", lambda: all(row["closed_at"] for row in cluster.incidents(job)))


def suspects_tested(cluster: Cluster, job: Job) -> dict[str, Any]:
    """What the tests beside training said of who had to go."""
    return cluster.until("it was tested", lambda: cluster.events(job, "suspects_tested"), MENDED_WITHIN_S)[0]


def test_a_group_that_hangs_goes_and_the_sound_one_of_it_comes_back(apart: Cluster) -> None:
    # A cut in the middle of a checkpoint is one that concerns all.
    job = apart.run("--pair", "--step-s", "0.3", "--checkpoint-every", "1000", nnodes=3, nproc=1)
    job.until_step(STRIKES_AT)
    bad, sound, third = apart.members(job)
    # Whom the bad one still reaches is neither in its group nor among those that it is tested with.
    others = [node for node in apart.nodes() if node not in (bad, sound, third)]
    cut(apart, bad, *others, sound)
    trains_again(apart, job, lambda nodes: not {bad, sound} & set(nodes))
    first, *_ = apart.events(job, "hang_found")
    assert (set(first["nodes"]), first["scope"]) == ({bad, sound}, "group"), first
    evictions = apart.events(job, "eviction")
    assert {event["node"] for event in evictions} == {bad, sound}
    assert all(set(event["together"]) == {bad, sound} for event in evictions)

    generation = job.generation()
    found = suspects_tested(apart, job)
    assert [suspect["node"] for suspect in found["at_fault"]] == [bad], found
    assert found["cleared"] == [sound]
    apart.until("the sound one is free", lambda: apart.nodes()[sound]["state"] == "standby")
    assert apart.nodes()[bad]["state"] == "evicted"
    (incident,) = apart.incidents(job)
    assert found["incident"] == incident["key"] and "suspects_tested" in timeline(apart, incident["key"])
    assert f"2 nodes evicted together: {bad} at fault, 1 back" in apart.command("show", incident["key"]).stdout
    assert job.generation() == generation, "training went on meanwhile"
    job.finish()
    check_record(apart, job)


def test_of_two_nodes_without_a_link_one_goes_and_is_found_sound(apart: Cluster) -> None:
    (case,) = (case for case in CASES if case.needs_links)
    job = start(apart, case, nnodes=2, nproc=1)
    since = strike(apart, case, job)
    members = apart.members(job)
    came = outcome(apart, case, job, since, MENDED_WITHIN_S)
    assert came.ranks == (0, 1), "which end of a link is at fault nobody can tell"
    assert came.decision == case.decision
    (evicted,) = (event["node"] for event in apart.events(job, "eviction"))
    assert evicted in members and evicted not in apart.members(job)
    found = suspects_tested(apart, job)
    assert (found["cleared"], found.get("at_fault", [])) == ([evicted], []), "with others it does well"
    job.finish()
    check_record(apart, job)


def test_if_the_wrong_one_of_two_goes_the_right_one_goes_next(apart: Cluster) -> None:
    job = apart.run("--step-s", "0.3", nnodes=2, nproc=1)
    job.until_step(STRIKES_AT)
    bad, sound = apart.members(job)
    cut(apart, bad, *(node for node in apart.nodes() if node not in (bad, sound)), sound)
    trains_again(apart, job, lambda nodes: bad not in nodes)
    assert [event["node"] for event in apart.events(job, "eviction")] == [sound, bad]
    apart.until("the first one comes back", lambda: apart.nodes()[sound]["state"] in ("standby", "active"))
    assert apart.nodes()[bad]["state"] == "evicted"
    job.finish()
    check_record(apart, job)


def test_a_hang_before_the_first_step_is_named_like_others(apart: Cluster) -> None:
    jobs = [(case, start(apart, case, nnodes=1, nproc=3)) for case in BEFORE_THE_FIRST_STEP]
    for case, job in jobs:
        came = outcome(apart, case, job, strike(apart, case, job))
        assert (came.ranks, came.decision) == ((GUILTY,), case.decision), came
        (incident,) = apart.incidents(job)
        assert (incident["symptom"], incident["outcome"]) == ("hang", "recovered"), case.name
        assert not apart.events(job, "deadline_passed")
        end(apart, case, job)
        check_record(apart, job)


def test_a_rank_that_hangs_when_those_of_other_nodes_have_ended_is_found(apart: Cluster) -> None:
    job = apart.run(
        "--steps",
        "60",
        "--step-s",
        "0.1",
        "--fault",
        "deadlock@end",
        "--fault-rank",
        "1",
        "--fault-once",
        nnodes=2,
        nproc=1,
    )
    assert job.exit_code(within_s=90.0) == 0
    job.check_result()
    first, last = apart.members(job)
    finished = [(event["node"], event["generation"]) for event in apart.events(job, "ranks_finished")]
    assert finished[0] == (first, 1) and (last, 1) not in finished
    (found,) = apart.events(job, "hang_found")
    assert (found["generation"], found.get("ranks", [1])) == (1, [1]), found
    (incident,) = apart.incidents(job)
    assert (incident["symptom"], incident["outcome"], incident["attempts"]) == ("hang", "recovered", 1)
    check_record(apart, job)


def test_ranks_that_wait_for_nobody_are_restarted_and_nobody_is_blamed(apart: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_text(str(STRIKES_AT))
    # A rank that looks often counts as working (`working_wakes_per_s`).
    job = apart.run("--gate", gate, "--gate-s", "0.5", "--step-s", "0.1", nnodes=2, nproc=1)
    found = apart.until("it is found", lambda: apart.events(job, "hang_found"))[0]
    gate.unlink()
    assert not found.get("ranks") and found.get("scope", "nobody") == "nobody", found
    assert found["still_s"] >= float(QUICK["HOLDFAST_HANG_UNNAMED_S"])
    looks = apart.events(job, "job_traced")
    assert len(looks) >= 2, "at first it was given longer"
    trains_again(apart, job, lambda nodes: True)
    (incident,) = apart.incidents(job)
    assert (incident["symptom"], incident["outcome"], incident["attempts"]) == ("hang", "recovered", 1)
    assert not apart.events(job, "eviction")
    job.finish()
    check_record(apart, job)
