"""Runs of checks on real processes with real faults: what each node reports, and who is named."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.engines.checks.checks_verdict import (
    SILENT_SYMPTOM,
    WRONG_ANSWER_SYMPTOM,
    ChecksVerdict,
    judge_checks,
)
from holdfast.engines.checks.result_log import ResultLog
from holdfast.engines.checks.suites import END, suite_tests
from holdfast.events import DiagnosticResult
from holdfast.fresh_ids import uuid7
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NODES = Path(__file__).with_name("diagnoser_nodes.py")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENT_S = 60.0
"""A limit that a sound test does not come near, however busy the machine is."""

CASES: list[dict[str, Any]] = [
    {"name": "sound", "suite": "full", "nodes": 3, "limit_s": PATIENT_S},
    {
        "name": "wrong product",
        "suite": "gpu",
        "nodes": 3,
        "limit_s": PATIENT_S,
        "fault": {"kind": "wrong_product", "node": 1},
    },
    {
        "name": "wrong answer",
        "suite": "nan",
        "nodes": 3,
        "limit_s": PATIENT_S,
        "fault": {"kind": "wrong_batched_product", "node": 2},
    },
    {
        "name": "damaged sending",
        "suite": "network",
        "nodes": 4,
        "limit_s": PATIENT_S,
        "fault": {"kind": "damaged_sending", "node": 0},
    },
    {
        "name": "stopped",
        "suite": "network",
        "nodes": 3,
        "limit_s": 3.0,
        "fault": {"kind": "stopped_at_the_first_meeting", "node": 1},
    },
    {"name": "crash", "suite": "gpu", "nodes": 2, "limit_s": PATIENT_S, "fault": {"kind": "crashes", "node": 0}},
]


class Run(NamedTuple):
    """What came of a case."""

    nodes: tuple[str, ...]
    results: list[DiagnosticResult]
    silent: dict[str, str]

    @property
    def verdict(self) -> ChecksVerdict:
        return judge_checks(self.nodes, self.results, self.silent)

    def of(self, node: str, test: str) -> list[DiagnosticResult]:
        return [result for result in self.results if (result.node, result.test) == (node, test)]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with WarmPython([sys.executable, str(NODES), str(folder)], stdin=subprocess.PIPE, text=True) as nodes:
        nodes.communicate(json.dumps(CASES), timeout=240)
    assert nodes.returncode == 0
    return folder


def _read(output: Path, name: str) -> Run:
    (case,) = (case for case in CASES if case["name"] == name)
    nodes = tuple(f"n{number}" for number in range(case["nodes"]))
    results = []
    for number, node in enumerate(nodes):
        common: dict[str, Any] = {"id": uuid7(), "at": NOW, "source": f"agent/{node}", "node": node, "run": name}
        for line in (output / name / f"{number}.jsonl").read_text().splitlines():
            fields = json.loads(line)
            results.append(DiagnosticResult(**common, **(fields | {"peers": tuple(fields["peers"])})))
    log = ResultLog(results)
    silent = {node: "it did not answer in time" for node in nodes if not log.has_all(node)}
    return Run(nodes, results, silent)


def test_sound_nodes_pass_every_test(output: Path) -> None:
    run = _read(output, "sound")
    assert {result.status for result in run.results} == {"passed", "skipped"}, run.results
    assert run.verdict.passed and not run.silent
    for node in run.nodes:
        assert {result.test for result in run.results if result.node == node} == {*suite_tests("full"), END}
    for test in ("gemm", "alignment", "alignment_parallel"):
        assert len({result.digest for result in run.results if result.test == test}) == 1
    assert all(result.value for result in run.results if result.test in ("gemm", "all_to_all"))


def test_everybody_met_everybody(output: Path) -> None:
    run = _read(output, "sound")
    met = {(result.node, *result.peers) for result in run.results if result.test == "all_gather" and result.peers}
    assert met == {(one, other) for one in run.nodes for other in run.nodes if one != other}


def test_a_flipped_bit_in_a_product_is_seen_by_the_node_itself(output: Path) -> None:
    run = _read(output, "wrong product")
    (suspect,) = run.verdict.suspects
    assert (suspect.node, suspect.symptom) == ("n1", "silent_data_corruption")
    assert "rows of a product of whole numbers" in suspect.reason
    assert run.verdict.cleared == ("n0", "n2")


def test_a_wrong_answer_that_repeats_itself_is_seen_by_comparison(output: Path) -> None:
    run = _read(output, "wrong answer")
    assert [result.status for result in run.of("n2", "gemm")] == ["passed"]
    assert [result.status for result in run.of("n2", "alignment")] == ["passed"]
    (suspect,) = run.verdict.suspects
    assert (suspect.node, suspect.symptom) == ("n2", WRONG_ANSWER_SYMPTOM)
    assert suspect.reason.startswith("alignment: its answer")


def test_damage_on_the_way_out_is_seen_by_all_partners(output: Path) -> None:
    run = _read(output, "damaged sending")
    (suspect,) = run.verdict.suspects
    assert suspect.node == "n0"
    said = [
        result.detail for node in ("n1", "n2", "n3") for result in run.of(node, "all_gather") if "n0" in result.peers
    ]
    assert said == ["what came from device 0 of n0, device 1 of n0 is not what was sent"] * 3
    assert run.verdict.cleared == ("n1", "n2", "n3")


def test_a_node_that_stops_keeps_nobody(output: Path) -> None:
    run = _read(output, "stopped")
    assert run.silent.keys() == {"n1"}
    (failed,) = (result for result in run.results if result.status == "failed")
    assert (failed.node, failed.peers, failed.round) == ("n0", ("n1",), 1)
    (broken,) = (result for result in run.results if result.status == "broken")
    assert (broken.node, broken.detail) == ("n2", "n1 did not come")
    (suspect,) = run.verdict.suspects
    assert (suspect.node, suspect.symptom) == ("n1", SILENT_SYMPTOM)
    assert run.verdict.cleared == ("n0", "n2")


def test_a_test_that_crashes_is_a_result(output: Path) -> None:
    run = _read(output, "crash")
    assert [result.detail for result in run.of("n0", "memory")] == ["its process died of SIGSEGV"] * 2
    (suspect,) = run.verdict.suspects
    assert suspect.node == "n0"
