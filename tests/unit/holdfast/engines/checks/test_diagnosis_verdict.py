"""What the results of a run of checks say of its nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.checks.checks_verdict import (
    SILENT_SYMPTOM,
    WRONG_ANSWER_SYMPTOM,
    ChecksVerdict,
    ended,
    judge_checks,
    why_silent,
)
from holdfast.engines.checks.pairs import rounds
from holdfast.engines.checks.references import AnswerKey, agreed
from holdfast.engines.checks.result_log import ResultLog
from holdfast.engines.checks.suites import END
from holdfast.events import DiagnosticResult, ProcessExited
from holdfast.events.parts.ranks import FoldedResult, RankException
from holdfast.fresh_ids import uuid7

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODES = tuple(f"n{number}" for number in range(4))


def result(node: str, test: str = "disk", status: str = "passed", **fields: Any) -> DiagnosticResult:
    common: dict[str, Any] = {"id": uuid7(), "at": NOW, "source": f"agent/{node}", "run": "r"}
    return DiagnosticResult(**common, node=node, test=test, status=status, **fields)  # type: ignore[arg-type]


def all_passed(nodes: tuple[str, ...] = NODES) -> list[DiagnosticResult]:
    return [result(node) for node in nodes]


def meetings(nodes: tuple[str, ...], bad: frozenset[str] = frozenset()) -> list[DiagnosticResult]:
    """Both ends of every pair, where all pairs of these nodes fail."""
    found = []
    for one, other in chain.from_iterable(rounds(len(nodes))):
        status = "failed" if bad & {nodes[one], nodes[other]} else "passed"
        for node, peer in ((nodes[one], nodes[other]), (nodes[other], nodes[one])):
            found.append(result(node, "all_gather", status, peers=(peer,), symptom="network_error", detail="timed out"))
    return found


def test_where_all_pass_everybody_is_cleared() -> None:
    verdict = judge_checks(NODES, all_passed() + meetings(NODES))
    assert verdict.passed
    assert verdict.cleared == NODES


def test_a_node_that_fails_its_own_test_is_named_with_what_it_found() -> None:
    wrong = result("n1", "gemm", "failed", symptom="silent_data_corruption", detail="row 7 is wrong", device="GPU 3")
    verdict = judge_checks(NODES, [*all_passed(), wrong])
    (suspect,) = verdict.suspects
    assert (suspect.node, suspect.symptom, suspect.confidence) == ("n1", "silent_data_corruption", "high")
    assert suspect.reason == "gemm of GPU 3 failed: row 7 is wrong"
    assert suspect.evidence == (wrong.id,)
    assert suspect.lines == ("row 7 is wrong",)
    assert verdict.cleared == ("n0", "n2", "n3")


def test_the_end_of_a_node_is_no_test_that_it_passed() -> None:
    results = [result("n0"), result("n0", END), result("n1", END)]
    log = ResultLog(results)
    assert log.has_all("n0") and log.has_all("n1")
    verdict = judge_checks(("n0", "n1"), results)
    assert (verdict.cleared, verdict.untested) == (("n0",), ("n1",))


def test_the_end_of_a_node_may_arrive_before_its_results() -> None:
    first, second, end = result("n0"), result("n0", "gemm", "failed"), result("n0", END, results=2)
    assert ended([first, end]) == {"n0"}
    log = ResultLog().having(first).having(first).having(end)
    assert not log.has_all("n0"), "the same result twice is one"
    assert ResultLog.from_plain(msgspec.to_builtins(log.to_plain())) == log
    later = log.having(second)
    assert later.has_all("n0")
    assert list(later) == [first, end, second]
    assert later.since(log) == [second]


def test_what_passed_counts_the_same_if_it_comes_with_the_end() -> None:
    """Each result that shows nothing in the end of its node's run, in place of an event of its own."""
    wrong = result("n1", "gemm", "failed", symptom="silent_data_corruption", detail="row 7 is wrong")
    answers = [
        result(node, "alignment", digest="a" if node != "n3" else "b", hardware="h", program="p", boot_id=node)
        for node in NODES
    ]
    rates = [result(node, "speed", value=1.0 if node == "n2" else 9.0, unit="x", hardware="h") for node in NODES]
    skipped = [result(node, "dcgm", "skipped", detail="not installed") for node in NODES]
    apart = [*all_passed(), *skipped, *answers, *rates, *meetings(NODES, frozenset({"n0"})), wrong]
    failed = [it for it in apart if it.status == "failed"]
    names = FoldedResult.__struct_fields__
    ends = [
        result(
            node,
            END,
            boot_id=node,
            results=sum(it.node == node for it in failed),
            folded=tuple(
                FoldedResult(**{name: getattr(it, name) for name in names})
                for it in apart
                if it.node == node and it not in failed
            ),
        )
        for node in NODES
    ]
    together = [*failed, *ends]
    references = {AnswerKey("alignment", "h", "p"): "a"}
    assert without_ids(judge_checks(NODES, apart, {}, references)) == without_ids(
        judge_checks(NODES, together, {}, references)
    )
    assert set(agreed(apart, {"n3"})) == set(agreed(together, {"n3"})) != set()
    assert all(ResultLog(together).has_all(node) for node in NODES)


def without_ids(verdict: ChecksVerdict) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(verdict),
        "suspects": [msgspec.structs.replace(suspect, evidence=()) for suspect in verdict.suspects],
        "unresolved": [msgspec.structs.replace(open_, evidence=()) for open_ in verdict.unresolved],
    }


def test_broken_and_skipped_tests_speak_neither_for_nor_against() -> None:
    results = [result("n0"), result("n1", status="broken"), result("n2", status="skipped"), result("n3")]
    results += [result("n1", "all_gather", "broken", peers=("n0",), detail="n0 did not come")]
    verdict = judge_checks(NODES, results)
    assert not verdict.suspects and not verdict.unresolved
    assert (verdict.cleared, verdict.untested) == (("n0", "n3"), ("n1", "n2"))
    assert not verdict.passed


def test_a_node_that_does_not_answer_is_a_suspect_and_its_partners_are_not() -> None:
    results = all_passed(("n0", "n1", "n2")) + [r for r in meetings(NODES, bad=frozenset({"n3"})) if r.node != "n3"]
    verdict = judge_checks(NODES, results, unanswered={"n3": "it did not answer in time"})
    (suspect,) = verdict.suspects
    assert (suspect.node, suspect.symptom, suspect.reason) == ("n3", SILENT_SYMPTOM, "it did not answer in time")
    assert verdict.cleared == ("n0", "n1", "n2")
    assert not verdict.unresolved


def test_a_node_that_fails_with_every_partner_is_named() -> None:
    results = meetings(NODES, bad=frozenset({"n2"}))
    verdict = judge_checks(NODES, results)
    (suspect,) = verdict.suspects
    assert (suspect.node, suspect.confidence, suspect.symptom) == ("n2", "high", "network_error")
    assert "it failed with n0, n1, n3" in suspect.reason
    assert set(suspect.evidence) == {r.id for r in results if r.status == "failed"}


def test_one_connection_that_fails_leaves_both_ends_in_doubt() -> None:
    results = [*meetings(NODES), result("n0", "all_gather", "failed", peers=("n1",), detail="connection reset")]
    verdict = judge_checks(NODES, results)
    assert not verdict.suspects
    (entry,) = verdict.unresolved
    assert entry.nodes == ("n0", "n1")
    assert "connection reset" in entry.reason
    assert verdict.cleared == ("n2", "n3")


def test_who_alone_cannot_reach_the_first_node_is_in_doubt_with_it() -> None:
    results = [*all_passed(), result("n2", "meeting", "failed", symptom="network_error")]
    (entry,) = judge_checks(NODES, results).unresolved
    assert entry.nodes == ("n0", "n2")


def test_the_first_node_is_named_if_nobody_can_reach_it() -> None:
    results = [*all_passed(), *(result(node, "meeting", "failed", symptom="network_error") for node in NODES[1:])]
    (suspect,) = judge_checks(NODES, results).suspects
    assert suspect.node == "n0"


def exited(**fields: Any) -> ProcessExited:
    return ProcessExited(id=uuid7(), at=NOW, source="agent/n", node="n", rank=0, local_rank=0, exited_at=NOW, **fields)


def test_how_a_check_process_ended_says_whether_its_node_is_to_blame() -> None:
    raised = RankException(type="KeyError", message="'x'", traceback="")
    assert why_silent(exited(exit_code=1, exception=raised)) == ""
    unwritten = RankException(type="holdfast_checks.__main__.NotReported", message="3 results: no space", traceback="")
    assert (
        why_silent(exited(exit_code=1, exception=unwritten)) == "its results could not be written: 3 results: no space"
    )
    assert why_silent(exited(signal=9)) == "its check process was ended by signal 9"
    setup = exited(exit_code=70, log_tail="Traceback ...\nOSError: no such device\n")
    assert why_silent(setup) == "its check process ended with exit code 70: OSError: no such device"
    assert "the node's zygote ended" in why_silent(exited(detail="the node's zygote ended, and its ranks with it"))


# --- answers that must be the same ----------------------------------------------------------------


def answers(*digests: str, hardware: str = "H200") -> list[DiagnosticResult]:
    return [
        result(f"n{number}", "alignment", digest=digest, hardware=hardware) for number, digest in enumerate(digests)
    ]


def test_the_node_whose_answer_deviates_is_named() -> None:
    verdict = judge_checks(NODES, answers("a", "a", "b", "a"))
    (suspect,) = verdict.suspects
    assert (suspect.node, suspect.symptom) == ("n2", WRONG_ANSWER_SYMPTOM)
    assert suspect.reason == "alignment: its answer b is not a, that of 3 others on H200"


def test_two_answers_without_a_majority_are_left_open() -> None:
    for digests in (("a", "b"), ("a", "a", "b", "b"), ("a", "b", "c")):
        verdict = judge_checks(NODES[: len(digests)], answers(*digests))
        assert not verdict.suspects
        (entry,) = verdict.unresolved
        assert entry.nodes == NODES[: len(digests)]


def test_a_known_answer_decides_between_two() -> None:
    known = {AnswerKey("alignment", "H200", ""): "a"}
    (suspect,) = judge_checks(NODES[:2], answers("a", "b"), references=known).suspects
    assert suspect.node == "n1"
    assert suspect.reason == "alignment: its answer b is not a, that of 1 others and of earlier runs on H200"


def test_a_known_answer_is_one_voter_and_no_judge() -> None:
    known = {AnswerKey("alignment", "H200", ""): "a"}
    assert judge_checks(NODES, answers("a", "a", "a", "a"), references=known).passed
    # Alone against it nobody is at fault; of several machines that agree against it neither.
    (entry,) = judge_checks(NODES[:1], answers("b"), references=known).unresolved
    assert entry.reason == "alignment: different answers: n0 b, a by earlier runs on H200, and no majority"
    assert judge_checks(NODES[:3], answers("b", "b", "b"), references=known).passed
    assert not judge_checks(
        NODES[:3], answers("a", "b", "c"), references={AnswerKey("alignment", "H100", ""): "a"}
    ).suspects


def test_answers_of_different_versions_of_a_test_are_not_compared() -> None:
    one, other = answers("a", "b")
    newer = msgspec.structs.replace(other, program="2")
    assert judge_checks(NODES[:2], [one, newer]).passed
    assert judge_checks(NODES[:2], [one, newer], references={AnswerKey("alignment", "H200", "1"): "c"}).passed


def of_machines(*machines: str, digests: str) -> list[DiagnosticResult]:
    return [
        msgspec.structs.replace(answer, program="1", boot_id=machine)
        for answer, machine in zip(answers(*digests), machines, strict=True)
    ]


def test_what_two_machines_agree_on_is_remembered() -> None:
    (reference,) = agreed(of_machines("x", "y", digests="aa"), ())
    assert (reference.key, reference.digest) == (AnswerKey("alignment", "H200", "1"), "a")
    assert reference.nodes == ("n0", "n1")
    # One machine, or an agent that does not say which version of the test it has, or whose machine it is on.
    assert not agreed(of_machines("x", "x", digests="aa"), ())
    assert not agreed(of_machines("x", "", digests="aa"), ())
    assert not agreed(answers("a", "a"), ())
    # What the suspect said counts for nothing; where two others differ, nothing is agreed on.
    assert [it.digest for it in agreed(of_machines("x", "y", "z", digests="aab"), {"n2"})] == ["a"]
    assert not agreed(of_machines("x", "y", "z", digests="aab"), ())


def test_answers_of_different_hardware_are_not_compared() -> None:
    one, other = answers("a", "b")
    results = [one, result("n1", "alignment", digest=other.digest, hardware="H100")]
    assert judge_checks(NODES[:2], results).passed


def test_a_device_that_answers_differently_from_the_others_of_its_own_node_is_found() -> None:
    deviating = result("n1", "alignment", digest="b", hardware="H200", device="GPU 5")
    (suspect,) = judge_checks(NODES, [*answers("a", "a", "a", "a"), deviating]).suspects
    assert suspect.node == "n1"


# --- limits ---------------------------------------------------------------------------------------


def test_if_most_nodes_fail_nobody_is_named() -> None:
    results = [result(node, "disk", "failed", symptom="disk_fault", detail="full") for node in NODES[:3]]
    verdict = judge_checks(NODES, [*results, result("n3")])
    assert not verdict.suspects
    assert verdict.capped.startswith("3 of 4 nodes fail")
    assert [entry.nodes for entry in verdict.unresolved] == [("n0",), ("n1",), ("n2",)]
    assert not verdict.passed


def test_a_node_alone_answers_for_itself() -> None:
    (suspect,) = judge_checks(("n0",), [result("n0", "gemm", "failed", symptom="compute_error")]).suspects
    assert suspect.node == "n0"


def test_half_of_the_nodes_may_be_named() -> None:
    (suspect,) = judge_checks(NODES[:2], [result("n0", status="failed"), result("n1")]).suspects
    assert suspect.node == "n0"


def test_a_slow_device_is_a_remark_and_no_more() -> None:
    results = [
        result(node, "gemm", value=50.0 if node == "n3" else 100.0 + number, unit="TFLOP/s", hardware="H200")
        for number, node in enumerate(NODES)
    ]
    verdict = judge_checks(NODES, results)
    assert verdict.passed
    assert verdict.remarks == ("n3 is slow: gemm 50 TFLOP/s, the others 101",)


@given(
    st.integers(min_value=3, max_value=24).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.integers(min_value=0, max_value=count - 1),
            st.sampled_from(["own", "silent", "meetings", "answer"]),
        )
    )
)
def test_one_bad_node_is_named_whatever_is_wrong_with_it(case: tuple[int, int, str]) -> None:
    count, number, fault = case
    nodes = tuple(f"n{index}" for index in range(count))
    bad = nodes[number]
    results = all_passed(nodes)
    unanswered = {}
    if fault == "own":
        results += [result(bad, "memory", "failed", symptom="memory_error")]
    if fault == "silent":
        results = [r for r in results if r.node != bad]
        unanswered = {bad: "its check process ended: signal 9"}
    results += meetings(nodes, bad=frozenset({bad} if fault in ("meetings", "silent") else ()))
    results += [result(node, "alignment", digest="x" if (node, fault) == (bad, "answer") else "y") for node in nodes]
    verdict = judge_checks(nodes, results, unanswered=unanswered)
    assert [suspect.node for suspect in verdict.suspects] == [bad]
    assert verdict.cleared == tuple(node for node in nodes if node != bad)
    assert not verdict.unresolved and not verdict.capped
