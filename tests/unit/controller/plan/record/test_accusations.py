"""Evictions that rest on what ranks did or printed: bounded, and taken back once the job does it without the node."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.events import ChecksStarted, Eviction, EvictionRevoked, Inspection, Withheld
from holdfast.fresh_ids import uuid7
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.phase import Checking
from holdfast_controller.plan.record.accusations import ACCUSATIONS, is_full, may_exchange
from holdfast_controller.plan.record.noting import note_cleared, strike_incident
from tests.scenes.failing_job import ECC, FailingJob


def print_until_evicted(job: FailingJob, node: str, rank: int, free: str = "c") -> int:
    """Return after how many crashes the node is gone, if one other node is free."""
    for crashes in range(1, 9):
        job.print_ecc(node, rank, free)
        if node not in job.state.nodes:
            return crashes
    raise AssertionError(f"{node} stays")


def test_what_a_script_prints_about_one_node_evicts_it_once_tests_have_passed_and_no_test_brings_it_back() -> None:
    job = FailingJob(("a", "b"))
    assert print_until_evicted(job, "b", 2) == 3
    (eviction,) = job.of(Eviction)
    assert eviction.node == "b" and not eviction.together
    assert (MarkKind.CHECKS_PASSED, False) in job.marks("b")
    record = job.controller.records["b"]
    assert record.accusation is not None and record.accusation.epoch == eviction.epoch


def test_a_node_that_was_never_tested_is_tested_after_its_eviction() -> None:
    job = FailingJob(("a", "b"), Rules(mechanisms=MechanismPolicy(stop_time_checks="observe")))
    for _ in range(3):
        job.print_ecc("b", 2, "c")
    (eviction,) = job.of(Eviction)
    assert eviction.together == ("b",)


def test_words_that_follow_their_rank_bring_the_node_back_and_are_believed_no_more() -> None:
    job = FailingJob(("a", "b"))
    print_until_evicted(job, "b", 2)
    job.print_ecc("c", 2)
    (revoked,) = job.of(EvictionRevoked)
    assert (revoked.node, revoked.epoch) == ("b", 1)
    assert not any(counts for node in "bc" for _, counts in job.marks(node))
    for _ in range(5):
        job.print_ecc("c", 2)
        job.now += timedelta(hours=1)
    assert "c" in job.state.nodes and (MarkKind.EXPLAINED, False) in job.marks("c")


def test_words_of_other_ranks_on_other_nodes_bring_it_back_in_a_small_job_only() -> None:
    for others, is_revoked in ((3, True), (999, False)):
        job = FailingJob(("z", *(f"n{number}" for number in range(others))))
        print_until_evicted(job, "z", 0, "spare")
        job.print_ecc("n1", 4)
        assert bool(job.of(EvictionRevoked)) is is_revoked, others


def test_words_of_other_nodes_do_not_bring_back_a_node_that_printed_none() -> None:
    job = FailingJob(tuple(f"n{number}" for number in range(32)))
    for _ in range(3):
        job.exit("n7", rank=14, signal=11, step=job.state.step + 1)
        if "n7" in job.state.nodes and job.state.replacement:
            job.grant("spare")
        job.train()
    assert "n7" not in job.state.nodes
    for node in ("n1", "n2"):
        job.now += timedelta(hours=1)
        job.print_ecc(node, 4)
    assert not job.of(EvictionRevoked)


def test_time_that_passes_refutes_no_accusation() -> None:
    job = FailingJob(tuple(f"n{number}" for number in range(32)))
    for _ in range(3):
        job.exit("n7", rank=14, signal=11, step=job.state.step + 1)
        if "n7" in job.state.nodes and job.state.replacement:
            job.grant("spare")
        job.train()
    assert "n7" not in job.state.nodes
    job.now += timedelta(days=10)
    job.print_ecc("n1", 2)
    assert not job.of(EvictionRevoked), "its odds have faded by themselves"


def test_a_witness_on_the_next_node_shows_that_both_are_broken() -> None:
    job = FailingJob(("a", "b"))
    print_until_evicted(job, "b", 2)
    alert = {"check": "gpu", "state": "alert", "confidence": "tolerate", "symptom": "gpu_memory_error"}
    job.send(Inspection, node="c", job="job", device="0000:3b:00", **alert)
    job.exit("c", rank=2, exit_code=1, exception=ECC)
    assert [event.node for event in job.of(Eviction)] == ["b", "c"] and not job.of(EvictionRevoked)
    assert job.controller.records["c"].accusation is None


def test_a_script_that_prints_on_node_after_node_costs_three_of_them_in_a_day() -> None:
    job = FailingJob(tuple(f"n{number}" for number in range(8)))
    for number in range(8):
        # The breaker counts the hour, and is not what holds it back here.
        job.now += timedelta(hours=2)
        for _ in range(4):
            if f"n{number}" in job.state.nodes:
                # Each time another rank: none follows the job.
                job.exit(f"n{number}", rank=2 * number, signal=11, step=job.state.step + 1)
                job.exit(f"n{number}", rank=2 * number, signal=11, step=job.state.step + 1)
                job.print_ecc(f"n{number}", 2 * number)
        if job.state.vacancies:
            job.grant(f"spare-{number}")
            job.train()
    held = [record.node for record in job.controller.records.values() if record.accusation]
    assert len(held) == 3
    assert {event.mechanism for event in job.of(Withheld)} == {ACCUSATIONS}


def test_what_a_rollback_answers_was_no_fault_of_a_node_whatever_its_ranks_printed() -> None:
    job = FailingJob()
    job.exit("b", rank=2, exit_code=1, exception=ECC)
    draft = JobDraft(job.state, uuid7(), job.now, job.controller.planner.rules)
    strike_incident(draft, ("b",), "the code was rolled back for it")
    (mark,) = draft.records["b"].marks
    assert mark.kind is MarkKind.HARDWARE and not mark.counts


def test_all_jobs_of_one_user_can_accuse_twice_as_many_nodes_as_one() -> None:
    job = FailingJob()
    mark = Mark(at=job.now, kind=MarkKind.EVICTED, is_accusation=True, author="ada")
    held = {
        f"n{number}": NodeRecord(node=f"n{number}").with_mark(replace(mark, job=f"j{number}")) for number in range(6)
    }

    def is_full_with(records: dict[str, NodeRecord]) -> bool:
        rules = replace(job.controller.planner.rules, records=NodeRecords(records))
        return is_full(JobDraft(job.state, uuid7(), job.now, rules))

    assert job.state.author == "ada" and is_full_with(held)
    assert not is_full_with(dict(list(held.items())[:5]))
    others = {node: NodeRecord(node=node).with_mark(replace(mark, job="j", author="bob")) for node in held}
    assert not is_full_with(others)
    job.now += timedelta(days=1)
    assert not is_full_with(held)


def exchanged(job: FailingJob, node: str, rank: int, spare: str) -> bool:
    """Let a rank print that its machine is broken, while another node is free; return True if the node leaves."""
    job.exit(node, rank=rank, exit_code=1, exception=ECC, step=job.state.step + 1)
    if job.state.replacement is None:
        return False
    job.grant(spare)
    job.train()
    return node not in job.state.nodes


def test_a_node_that_its_own_rank_accuses_leaves_for_a_free_one_and_is_tested() -> None:
    job = FailingJob()
    assert exchanged(job, "b", 2, "e")
    (eviction,) = job.of(Eviction)
    assert (eviction.node, eviction.together) == ("b", ("b",)) and not job.of(ChecksStarted)
    record = job.controller.records["b"]
    assert record.accusation is not None and record.accusation.is_tested


def test_the_same_words_on_the_next_node_lead_to_checks_of_all_while_the_first_is_tested() -> None:
    job = FailingJob()
    job.exit("b", rank=2, exit_code=1, exception=ECC, step=6)
    job.grant("e")
    job.exit("e", rank=2, exit_code=1, exception=ECC, step=6)
    assert isinstance(job.state.phase, Checking) and not job.of(EvictionRevoked)
    assert job.controller.records["b"].accusation, "its own test decides about it"


def test_a_job_whose_words_cost_a_healthy_node_has_no_other_one_exchanged_for_a_day() -> None:
    job = FailingJob()
    assert exchanged(job, "b", 2, "e")
    draft = JobDraft(job.state, uuid7(), job.now, replace(job.controller.planner.rules, records=job.controller.records))
    note_cleared(draft, "b", "it passed the tests", job=job.state.job)
    job.controller.records["b"] = draft.records["b"]
    assert not exchanged(job, "c", 4, "f") and isinstance(job.state.phase, Checking)
    job = FailingJob()
    assert exchanged(job, "b", 2, "e")
    job.now += timedelta(hours=1)
    assert exchanged(job, "c", 4, "f"), "nothing was cleared"


def test_words_that_were_wrong_say_nothing_of_a_hang() -> None:
    job = FailingJob()
    assert exchanged(job, "b", 2, "e")
    draft = JobDraft(job.state, uuid7(), job.now, replace(job.controller.planner.rules, records=job.controller.records))
    note_cleared(draft, "b", "it passed the tests", job=job.state.job)
    draft = JobDraft(job.state, uuid7(), job.now, replace(draft.rules, records=draft.records))
    words, hang = (Failure(symptom=it, generation=2, step=9, text="") for it in (Symptom.EXIT_CODE, Symptom.HANG))
    assert not may_exchange(draft, words) and may_exchange(draft, hang)


def test_a_node_that_prints_the_same_again_as_the_only_one_leaves_though_tests_had_cleared_it() -> None:
    job = FailingJob()
    assert exchanged(job, "b", 2, "e")
    draft = JobDraft(job.state, uuid7(), job.now, replace(job.controller.planner.rules, records=job.controller.records))
    note_cleared(draft, "b", "it passed the tests", job=job.state.job)
    job.controller.records["b"] = draft.records["b"]
    job.now += timedelta(hours=1)
    job.submit("later", ("b", "x", "y"))
    job.exit("b", rank=0, exit_code=1, exception=ECC, job="later")
    job.grant("z", job="later")
    first, second = job.of(Eviction)
    assert first.together and (second.node, second.job, second.together) == ("b", "later", ())
