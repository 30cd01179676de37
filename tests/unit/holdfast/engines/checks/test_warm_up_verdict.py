"""Verdicts on the warm-up of a job's nodes: unfit is what others are not."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from holdfast.engines.checks.warm_up import DEVICES, PATHS, SOCKETS, WarmUpVerdict, judge_warm_up, paths_of
from holdfast.events import DiagnosticResult
from holdfast.events.parts.job import JobSpec
from holdfast.ids import named_id

AT = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = count()


def result(node: str, test: str, status: Any = "passed", **fields: Any) -> DiagnosticResult:
    ident = named_id(AT, str(next(_numbers)))
    named: dict[str, Any] = {"symptom": "filesystem_mount"} if status == "failed" else {}
    return DiagnosticResult(
        id=ident, at=AT, source=node, node=node, run="r", test=test, status=status, **(named | fields)
    )


def has(node: str, digest: str = "on nas:/data (nfs4)") -> DiagnosticResult:
    return result(node, PATHS, device="/data", digest=digest)


def lacks(node: str) -> DiagnosticResult:
    return result(node, PATHS, "failed", device="/data", detail="/data: No such file or directory")


def meets(node: str, peer: str, status: str = "passed") -> DiagnosticResult:
    return result(node, SOCKETS, status, peers=(peer,), symptom="network_error" if status == "failed" else "")


def named(verdict: WarmUpVerdict) -> list[str]:
    return [suspect.node for suspect in verdict.suspects]


def test_a_path_that_another_node_has_counts() -> None:
    verdict = judge_warm_up("ab", [has("a"), lacks("b")])
    assert named(verdict) == ["b"] and not verdict.shared
    assert verdict.suspects[0].symptom == "filesystem_mount"


def test_a_path_that_no_node_has_counts_against_none() -> None:
    verdict = judge_warm_up("abc", [lacks("a"), lacks("b"), lacks("c")])
    assert named(verdict) == []
    assert [(found.thing, found.nodes) for found in verdict.shared] == [("/data", ("a", "b", "c"))]


def test_a_single_node_is_compared_with_none() -> None:
    assert named(judge_warm_up("a", [lacks("a")])) == []
    assert named(judge_warm_up("a", [result("a", DEVICES, "failed", device="GPU 0")])) == ["a"]


def test_silent_nodes_have_passed_nothing() -> None:
    verdict = judge_warm_up("abc", [lacks("a")])
    assert named(verdict) == [] and verdict.shared[0].nodes == ("a",)


def test_what_most_nodes_fail_counts_against_none() -> None:
    fails = [result(node, DEVICES, "failed", device="GPU 0", detail="no driver") for node in "abc"]
    verdict = judge_warm_up("abcd", [*fails, result("d", DEVICES)])
    assert named(verdict) == [] and verdict.shared[0].nodes == ("a", "b", "c")
    assert "no driver" in verdict.shared[0].reason


def test_an_empty_mount_point_is_told_by_the_others() -> None:
    local = "an empty directory on a disk of the node"
    assert named(judge_warm_up("abc", [has("a"), has("b"), has("c", local)])) == ["c"]
    # Of two nodes either may be the wrong one.
    assert named(judge_warm_up("ab", [has("a"), has("b", local)])) == []


def test_a_node_that_reaches_none_is_named() -> None:
    fails = [meets("a", "c", "failed"), meets("b", "c", "failed"), meets("a", "b"), meets("b", "a")]
    assert named(judge_warm_up("abc", fails)) == ["c"]


def test_a_node_that_cannot_reach_the_store_is_named() -> None:
    results = [meets("a", "b"), meets("b", "a"), result("c", "meeting", "failed", detail="timed out")]
    assert named(judge_warm_up("abc", results)) == ["c"]


def test_a_first_node_that_is_late_with_the_store_is_not_named() -> None:
    late = [result(node, "meeting", "failed", detail="Connection refused") for node in "bcd"]
    assert named(judge_warm_up("abcd", late)) == []
    assert named(judge_warm_up("abcd", [*late, result("a", "end")])) == ["a"]


def test_of_two_ends_the_newcomer_is_at_fault() -> None:
    ring = [meets("a", "b"), meets("b", "c"), meets("c", "d", "failed"), meets("d", "a")]
    assert named(judge_warm_up("abcd", ring, {"d"})) == ["d"]
    unknown = judge_warm_up("abcd", ring)
    assert named(unknown) == [] and "only with each other" in unknown.remarks[0]
    # Without one of two nodes, the connection is not used.
    assert named(judge_warm_up("ab", [meets("a", "b", "failed")])) == ["b"]


def test_an_end_that_reached_another_node_as_little_before_is_at_fault_and_no_guess() -> None:
    failed = [meets("a", "b", "failed")]
    (guessed,) = judge_warm_up("ab", failed).suspects
    assert (guessed.node, guessed.link, guessed.is_guess) == ("b", ("a", "b"), True)
    (shown,) = judge_warm_up("ab", failed, {"b"}, [("a", "c")]).suspects
    assert (shown.node, shown.is_guess) == ("a", False) and "neither could a and c before" in shown.reason
    # The same connection again, or one of each end, tells nothing apart.
    for before in ([("a", "b")], [("a", "c"), ("b", "d")]):
        (guessed,) = judge_warm_up("ab", failed, {"b"}, before).suspects
        assert (guessed.node, guessed.is_guess) == ("b", True)


def test_the_paths_of_a_job_are_those_on_disks() -> None:
    spec = JobSpec(name="j", script="t.py", cwd="/work", directory="s3://bucket/j", data=("/data", "/more"))
    assert [(one.path, one.use) for one in paths_of(spec)] == [("/work", "works"), ("/data", "data"), ("/more", "data")]
