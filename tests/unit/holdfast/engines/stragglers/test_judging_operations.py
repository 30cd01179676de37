"""What is said of simulated jobs in which something is slow: the right cause, and no machine that is not at fault."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.stragglers.judging import judge_operations
from holdfast.engines.stragglers.straggler_report import in_words
from holdfast.engines.stragglers.straggler_verdict import SlownessVerdict
from holdfast.engines.stragglers.traces.operations import read_operations
from tests.scenes.operation_traces import Job

SEEDS = range(2)
SIZES: list[dict[str, Any]] = [
    {"dp": 4, "pp": 3},
    {"dp": 3, "pp": 2, "vpp": 2, "microbatches": 6},
    {"dp": 3, "pp": 3, "overlap": True},
]


def judged(**job: Any) -> SlownessVerdict:
    given = {"dp": 4, "pp": 3, "microbatches": 6, "steps": 5, "lengths": 0.01, **job}
    return judge_operations(read_operations(Job(**given).trace(), "trace"))


def blamed(verdict: SlownessVerdict) -> set[tuple[int, int]]:
    return {(one.dp_rank, one.stage) for cause in verdict.causes if cause.kind == "machine" for one in cause.workers}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_job_names_nobody(size: dict[str, Any], seed: int) -> None:
    verdict = judged(**size, seed=seed, noise=0.02)
    assert (verdict.verdict, verdict.is_machine_fault, verdict.evict, verdict.suspects) == ("none", False, (), ())
    assert verdict.what_if.slowdown < 1.1
    assert abs(verdict.what_if.replay_error) < 0.02


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_machine_is_named_and_evicted(size: dict[str, Any], seed: int) -> None:
    at = (seed % size["dp"], (seed + 1) % size["pp"])
    verdict = judged(**size, seed=seed, slow={at: (1.4, 1.35)})
    assert (verdict.verdict, blamed(verdict)) == ("machine", {at})
    assert verdict.causes[0].workers[0].times == pytest.approx(1.37, abs=0.03)
    first = (at[1] * size["dp"] + at[0]) * 2
    assert verdict.evict == (first, first + 1)
    assert verdict.causes[0].first_step is None
    assert verdict.what_if.by_worker[at[0]][at[1]] == max(max(row) for row in verdict.what_if.by_worker)


def test_a_machine_slow_by_an_eighth_is_named() -> None:
    assert blamed(judged(slow={(2, 1): (1.12, 1.12)})) == {(2, 1)}


def test_two_slow_machines_are_both_named() -> None:
    slow = {(0, 0): (1.3, 1.3), (2, 2): (1.5, 1.4)}
    assert blamed(judged(slow=slow)) == set(slow)


def test_of_two_replicas_the_slow_one_is_named_less_surely() -> None:
    verdict = judged(dp=2, slow={(1, 1): (1.4, 1.4)})
    assert blamed(verdict) == {(1, 1)}
    assert verdict.confidence < judged(dp=4, slow={(1, 1): (1.4, 1.4)}).confidence


def test_without_pipeline_a_slow_machine_is_named() -> None:
    assert blamed(judged(dp=6, pp=1, slow={(3, 0): (1.3, 1.3)})) == {(3, 0)}


@pytest.mark.parametrize("pp", [1, 3])
def test_a_machine_slow_for_a_while_is_named_with_its_steps(pp: int) -> None:
    verdict = judged(dp=5, pp=pp, steps=12, slow={(1, pp // 2): (1.6, 1.6)}, slow_steps=range(4, 9))
    assert (verdict.verdict, blamed(verdict)) == ("machine", {(1, pp // 2)})
    assert (verdict.causes[0].first_step, verdict.causes[0].last_step) == (10 + 3 * 4, 10 + 3 * 8)


def test_a_machine_that_stalls_now_and_then_is_named() -> None:
    verdict = judged(pauses=0.15, paused=(2, 1), steps=10)
    assert (verdict.verdict, blamed(verdict)) == ("machine", {(2, 1)})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_heavy_last_stage_is_no_machines_fault(size: dict[str, Any], seed: int) -> None:
    verdict = judged(**size, seed=seed, last_stage=(1.5, 1.4))
    assert (verdict.verdict, verdict.is_machine_fault, verdict.evict) == ("stage_imbalance", False, ())
    assert verdict.causes[0].stages == (size["pp"] - 1,)
    assert verdict.what_if.last_stage > 0.5


def test_a_stage_with_more_layers_is_no_machines_fault() -> None:
    verdict = judged(pp=4, stages={1: 1.4})
    assert (verdict.verdict, verdict.causes[0].stages, verdict.evict) == ("stage_imbalance", (1,), ())


def test_with_one_replica_a_slow_stage_is_not_taken_for_a_slow_machine() -> None:
    verdict = judged(dp=1, slow={(0, 1): (1.6, 1.6)})
    assert (verdict.verdict, verdict.evict) == ("stage_imbalance", ())
    assert verdict.confidence < 0.7
    assert "no peer" in verdict.summary


@pytest.mark.parametrize("size", [*SIZES, {"dp": 6, "pp": 1}, {"dp": 1, "pp": 3}])
@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_of_unequal_length_are_no_machines_fault(size: dict[str, Any], seed: int) -> None:
    verdict = judged(**size, seed=seed, lengths=0.4)
    assert (verdict.verdict, verdict.is_machine_fault, verdict.evict) == ("sequence_length_imbalance", False, ())
    assert verdict.forward_backward_correlation > 0.9


def test_unequal_sequences_are_named_before_the_heavier_last_stage() -> None:
    verdict = judged(lengths=0.4, last_stage=(1.3, 1.3))
    assert verdict.verdict == "sequence_length_imbalance"
    assert {one.kind for one in verdict.causes} == {"sequence_length_imbalance", "stage_imbalance"}
    assert verdict.evict == ()


def test_a_far_heavier_last_stage_is_named_before_unequal_sequences() -> None:
    assert judged(lengths=0.1, last_stage=(1.8, 1.8)).verdict == "stage_imbalance"


def test_a_pipeline_slow_on_all_its_stages_is_no_machines_fault() -> None:
    verdict = judged(slow={(1, stage): (1.3, 1.3) for stage in range(3)}, tp=8)
    assert (verdict.verdict, verdict.evict) == ("sequence_length_imbalance", ())
    assert "data-parallel rank 1" in verdict.summary


def test_a_pipeline_that_is_on_one_machine_is_that_machine() -> None:
    verdict = judged(pp=2, tp=1, slow={(1, stage): (1.3, 1.3) for stage in range(2)})
    assert (verdict.verdict, verdict.evict) == ("machine", (1, 5))


@pytest.mark.parametrize("size", SIZES)
def test_a_slow_link_is_named_and_evicts_nobody(size: dict[str, Any]) -> None:
    verdict = judged(**size, links={(1, 0): 150.0})
    assert (verdict.verdict, verdict.evict) == ("link", ())
    assert {(one.dp_rank, one.stage) for one in verdict.suspects} == {(1, 0), (1, 1)}


def test_a_slow_data_parallel_group_is_named() -> None:
    verdict = judged(groups={1: 8.0})
    assert verdict.verdict == "link"
    assert {one.stage for one in verdict.suspects} == {1}


def test_pauses_here_and_there_are_no_machines_fault() -> None:
    verdict = judged(pauses=0.06)
    assert (verdict.verdict, verdict.evict) == ("pauses", ())
    assert "100% of them forward" in verdict.causes[0].evidence[0]


def test_shares_tell_causes_that_act_together_apart() -> None:
    verdict = judged(slow={(1, 2): (1.5, 1.5)}, lengths=0.2, steps=8)
    shares = {one.kind: one.share for one in verdict.causes}
    assert set(shares) == {"machine", "sequence_length_imbalance"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.1)
    assert shares["machine"] > shares["sequence_length_imbalance"] > 0.1
    assert blamed(verdict) == {(1, 2)}


@pytest.mark.parametrize("size", SIZES)
def test_clocks_that_differ_change_nothing(size: dict[str, Any]) -> None:
    verdict = judged(**size, slow={(1, 1): (1.4, 1.4)}, skew_s=0.2)
    assert (verdict.verdict, blamed(verdict)) == ("machine", {(1, 1)})
    assert any("clocks" in one for one in verdict.warnings)
    assert judged(**size, skew_s=0.2).verdict == "none"


@pytest.mark.parametrize("size", SIZES)
def test_rows_that_are_missing_change_nothing(size: dict[str, Any]) -> None:
    verdict = judged(**size, slow={(1, 1): (1.4, 1.4)}, lost_rows=0.02)
    assert (verdict.verdict, blamed(verdict)) == ("machine", {(1, 1)})
    assert any("were not recorded" in one for one in verdict.warnings)
    assert judged(**size, lost_rows=0.02).verdict == "none"


def test_stages_without_passes_and_microbatches_without_numbers_change_nothing() -> None:
    rows = Job(dp=4, pp=3, steps=5, slow={(1, 2): (1.4, 1.4)}).trace().decode().splitlines()
    found = [row for row in rows if not (row.split(",")[1] == "0" and "-compute" in row)]
    assert blamed(judge_operations(read_operations("\n".join(found).encode(), "trace"))) == {(1, 2)}
    cells = [row.split(",") for row in rows[1:]]
    same = [",".join([*row[:9], "0" if "-compute" in row[4] else "-1", row[10]]) for row in cells]
    assert blamed(judge_operations(read_operations("\n".join([rows[0], *same]).encode(), "trace"))) == {(1, 2)}


def test_words_say_who_goes_and_mark_the_worker_on_the_map() -> None:
    said = in_words(judged(slow={(2, 1): (1.5, 1.5)}))
    assert said[0] == "verdict     machine"
    assert "evict       12, 13" in said
    (row,) = [line for line in said if "dp 2 " in line and "*" in line]
    assert row.split("*")[0].count(".") == 2
    said = in_words(judged(last_stage=(1.5, 1.5)))
    assert "evict       none" in said
    assert "No machine is at fault" in said[1]
