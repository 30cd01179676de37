"""ByteDance's trace of a slowed-down worker beside the figures published with it. Needs HOLDFAST_FIELD_DATA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engines.stragglers.judging import judge_operations
from holdfast.engines.stragglers.straggler_verdict import SlownessVerdict
from holdfast.engines.stragglers.traces.operations import read_operations

FIELD_DATA = os.environ.get("HOLDFAST_FIELD_DATA")

pytestmark = pytest.mark.skipif(not FIELD_DATA, reason="HOLDFAST_FIELD_DATA does not name the folder of field data")


def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(folder().joinpath(name).read_bytes())
    return found


def folder() -> Path:
    return Path(FIELD_DATA or "") / "straggler_traces"


@pytest.fixture(scope="module")
def verdict() -> SlownessVerdict:
    data, meta = (folder().joinpath(name).read_bytes() for name in ("trace-AR.csv.gz", "meta-AR.yaml"))
    return judge_operations(read_operations(data, "trace-AR.csv.gz", meta))


def test_the_worker_that_was_slowed_down_is_named_alone(verdict: SlownessVerdict) -> None:
    assert (verdict.verdict, verdict.evict) == ("machine", (0, 1, 2, 3))
    assert [(one.dp_rank, one.stage) for one in verdict.suspects] == [(0, 0)]
    assert verdict.causes[0].share > 0.95
    assert verdict.warnings == ()


def test_the_figures_are_those_published(verdict: SlownessVerdict) -> None:
    figures, result = verdict.what_if, published("result-AR.json")
    assert figures.recorded_s == pytest.approx(sum(result["step_t_base"].values()) / len(result["step_t_base"]))
    assert figures.ideal_s == pytest.approx(next(iter(result["step_t_noblk"].values())), rel=0.001)
    assert figures.slowdown == pytest.approx(result["blocking_slowdown"], rel=0.002)
    assert figures.by_kind == pytest.approx(result["blocking_decompose_by_optype"], rel=0.003)
    for number, times in result["blocking_decompose_by_stage"].items():
        assert figures.by_stage[int(number)] == pytest.approx(times, rel=0.002)
    for number, times in result["blocking_decompose_by_dp_rank"].items():
        assert figures.by_dp_rank[int(number)] == pytest.approx(times, rel=0.006)
    assert figures.worst_workers == pytest.approx(published("mw-AR.json")["Mw"], abs=0.012)
    assert figures.last_stage == pytest.approx(published("ms-AR.json")["Ms"], abs=0.012)
