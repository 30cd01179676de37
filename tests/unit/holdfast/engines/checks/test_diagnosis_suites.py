"""Which tests a run has, in which order, and how long it may take."""

from __future__ import annotations

import pytest

from holdfast.engines.checks.checks_program import are_checks, checks_of, time_limit_s
from holdfast.engines.checks.suites import (
    DCGM_LIMITS_S,
    DCGM_RUNS,
    LIMITS_S,
    NODES_PER_S_MIN,
    SUITES,
    UnknownSuite,
    deadline_s,
    meeting_limit_s,
    rest_s,
    stages,
    suite_for,
)
from holdfast.events.parts.job import JobSpec
from holdfast_checks.driver import code_of

JOB = JobSpec(
    name="j", script="train.py", args=("--x",), nnodes=4, nproc_per_node=2, mesh="dp=8", cwd="/job", directory="/d"
)


def test_devices_come_before_their_node_and_nodes_before_what_compares_them() -> None:
    order = ("dcgm", "gemm", "all_to_all", "all_gather", "alignment")
    for tests in SUITES.values():
        there = [test for test in order if test in tests]
        assert sorted(there, key=tests.index) == there


@pytest.mark.parametrize("test", sorted({test for tests in SUITES.values() for test in tests}))
def test_every_test_of_a_suite_has_code_and_a_limit(test: str) -> None:
    assert callable(code_of(test))
    assert LIMITS_S[test] > 0


def test_a_test_between_nodes_is_there_once_for_each_round() -> None:
    planned = [stage for stage in stages("network", 4) if stage.test == "all_gather"]
    assert [stage.round for stage in planned] == [1, 2, 3]
    assert planned[0].pairs == ((0, 1), (2, 3))
    assert not [stage for stage in stages("network", 1) if stage.test == "all_gather"]


def test_the_deadline_is_beyond_all_limits() -> None:
    planned = stages("nan", 8, 2.0)
    assert all(stage.limit_s == 2.0 for stage in planned)
    assert deadline_s("nan", 8, 2.0) > meeting_limit_s(2.0) + sum(stage.limit_s for stage in planned)
    assert deadline_s("nan", 8, 2.0) < deadline_s("nan", 8)


def test_a_symptom_leads_to_the_suite_that_looks_for_it() -> None:
    assert suite_for("nan") == "nan"
    assert suite_for("nccl_internal_error") == "network"
    assert suite_for("what nobody has seen") == "full"
    assert set(map(suite_for, ("nan", "cuda_error", "peer_lost", "?"))) <= SUITES.keys()


def test_an_unknown_suite_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownSuite, match="'quack'; there are quick, gpu"):
        stages("quack", 2)


def test_checks_of_a_job_have_its_nodes_and_one_process_on_each() -> None:
    checks = checks_of(JOB, "nan", limit_s=5.0)
    assert (checks.nnodes, checks.nproc_per_node, checks.mesh, checks.cwd) == (4, 1, None, "/")
    assert checks.args == ("--suite", "nan", "--workers", "2", "--limit-s", "5")
    assert are_checks(checks) and not are_checks(JOB)
    assert time_limit_s(checks) == deadline_s("nan", 4, 5.0)
    assert time_limit_s(checks_of(JOB, "full")) == deadline_s("full", 4)


def test_a_run_has_the_time_that_its_tests_and_its_nodes_need() -> None:
    for suite, tests in SUITES.items():
        longest_s = max(LIMITS_S[test] for test in tests)
        assert deadline_s(suite, 2) > rest_s(suite, 2) > longest_s
        assert deadline_s(suite, 10_000) == deadline_s(suite, 50) + 10_000 / NODES_PER_S_MIN
    assert rest_s("full", 2) > sum(DCGM_LIMITS_S[run] for run in DCGM_RUNS), "it holds the diagnostics of its GPUs"
