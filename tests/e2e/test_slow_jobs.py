"""A job that gets slow without a word: noticed by its collectives, and the machine or link at fault named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import JOBS, Cluster, cluster
from job import Job

from holdfast.faults.registry import find_fault
from holdfast.faults.requirements import lacking

pytestmark = pytest.mark.e2e

PACED = JOBS / "paced.py"
FIRST_ITERATIONS = 15
"""Before anything is known of the pace, nothing can get slower."""


def _skip_without(fault: str) -> None:
    if reasons := [reason for need in find_fault(fault).needs if (reason := lacking(need))]:
        pytest.skip("; ".join(reasons))


def _train(holdfast: Cluster, tmp_path: Path, *arguments: str) -> Job:
    job = holdfast.run("--until", tmp_path / "stop", *arguments, script=PACED, nnodes=3, nproc=1)

    def paced() -> bool:
        told = [event.get("iterations", ()) for event in holdfast.events(job, "steps_measured")]
        return sum(map(len, told)) > 3 * FIRST_ITERATIONS

    holdfast.until("its pace is known", paced)
    return job


def _until(holdfast: Cluster, job: Job, kind: str, after: dict[str, Any] | None = None) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [event for event in holdfast.events(job, kind) if after is None or _seconds(after, event) > 0.0]

    return holdfast.until(f"{kind} is emitted", found)[0]


def _named(holdfast: Cluster, job: Job) -> dict[str, Any]:
    """Return the first finding that names nodes: a busy machine is slow by itself at times, which names none."""

    def found() -> list[dict[str, Any]]:
        return [event for event in holdfast.events(job, "fail_slow_located") if event.get("nodes")]

    return holdfast.until("a finding names a node", found)[0]


def _seconds(earlier: dict[str, Any], later: dict[str, Any]) -> float:
    moments = [datetime.fromisoformat(event["at"]) for event in (earlier, later)]
    return (moments[1] - moments[0]).total_seconds()


@contextmanager
def _slow_node(holdfast: Cluster, node: str) -> Iterator[None]:
    holdfast.command("inject", "slow-node", "--node", node, "-o", "cores=0.05")
    try:
        yield
    finally:
        holdfast.command("inject", "--undo")


@pytest.mark.parametrize(
    "collectives",
    [pytest.param((), id="called by the script", marks=pytest.mark.long), pytest.param(("--ddp",), id="called by DDP")],
)
def test_a_slow_node_is_noticed_tested_and_named_and_that_it_is_well_again(
    holdfast: Cluster, tmp_path: Path, collectives: tuple[str, ...]
) -> None:
    _skip_without("slow-node")
    job = _train(holdfast, tmp_path, "--products", "60", "--rest-s", "0.3", *collectives)
    last = holdfast.members(job)[2]
    with _slow_node(holdfast, last):
        onset = _until(holdfast, job, "fail_slow_onset")
        found = _named(holdfast, job)
    assert onset["after_s"] > 1.1 * onset["before_s"]
    assert (found["fault"], found["nodes"], found["ranks"], found["is_validated"]) == ("computation", [last], [2], True)
    # Training was held in place, and went on: nobody took it for a hang or a crash.
    assert 0 < found["held_s"] < 30
    relieved = _until(holdfast, job, "fail_slow_relieved", after=found)
    assert relieved["after_s"] < relieved["before_s"]
    assert len(holdfast.events(job, "generation_started")) == 1
    assert not holdfast.incidents(job)
    shown = holdfast.command("slow", job.name, "--json", check=False)
    told = json.loads(shown.stdout)
    assert [rank[1] for rank in told["pace"]] == holdfast.members(job)
    assert told["pace_s"] > 0
    print(f"onset to name {_seconds(onset, found):.1f} s, held {found['held_s']:.1f} s")
    (tmp_path / "stop").touch()
    assert job.exit_code() == 0


def test_who_computes_while_the_others_wait_is_named_by_rounds_of_stacks(holdfast: Cluster, tmp_path: Path) -> None:
    # By the script itself: a machine that is slow as a whole may not read its own stacks in time.
    arguments = ("--until", tmp_path / "stop", "--laggard", "2", "--products", "60", "--rest-s", "0.05")
    job = holdfast.run(*arguments, script=PACED, nnodes=3, nproc=1)
    holdfast.until("it trains", lambda: holdfast.events(job, "steps_measured"))
    last = holdfast.members(job)[2]
    found = json.loads(holdfast.command("slow", job.name, "--stacks", "--json", check=False).stdout)
    shown = "\n".join([found["summary"], *found["evidence"]])
    # On a busy machine some stacks are not read in time: such a round does not count, and another is taken.
    assert 3 <= sum(taken.get("is_counted", True) for taken in found["rounds"]) <= 5, shown
    assert found.get("suspects") == [last], shown
    assert found["flagged"][0]["nodes"] == [last] and found["flagged"][0]["times"] >= 3, shown
    (tmp_path / "stop").touch()
    assert job.exit_code() == 0


@pytest.fixture
def networked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    _skip_without("slow-link")
    with cluster(tmp_path_factory.mktemp("networked"), 3, namespaces=True) as running:
        yield running


@pytest.mark.skipif(
    "HOLDFAST_DRILLS" not in os.environ, reason="a cluster of its own takes long: set HOLDFAST_DRILLS=1"
)
def test_a_slow_link_is_noticed_tested_and_named(networked: Cluster, tmp_path: Path) -> None:
    arguments = ("--products", "10", "--rest-s", "0.3", "--average-bytes", "500000")
    job = _train(networked, tmp_path, *arguments)
    last = networked.members(job)[2]
    networked.command("inject", "slow-link", "--node", last, "-o", "rate=20mbit")
    onset = _until(networked, job, "fail_slow_onset")
    found = _named(networked, job)
    networked.command("inject", "--undo")
    assert (found.get("fault"), found.get("is_validated")) == ("communication", True), found
    # All of the node's links are slow, so the node is named, and no link that it has no part in.
    assert all(last in link for link in found["links"])
    assert found["nodes"] == [last]
    _until(networked, job, "fail_slow_relieved", after=found)
    assert len(networked.events(job, "generation_started")) == 1
    print(f"onset to name {_seconds(onset, found):.1f} s, held {found['held_s']:.1f} s")
    (tmp_path / "stop").touch()
    assert job.exit_code() == 0


@pytest.fixture
def spacious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    _skip_without("slow-node")
    with cluster(tmp_path_factory.mktemp("spacious"), 6) as running:
        yield running


@pytest.mark.skipif(
    "HOLDFAST_DRILLS" not in os.environ, reason="a cluster of its own takes long: set HOLDFAST_DRILLS=1"
)
def test_who_was_evicted_for_being_slow_is_tested_beside_free_nodes(spacious: Cluster, tmp_path: Path) -> None:
    # A job that cannot go on from a step is not restarted for being slow.
    job = _train(spacious, tmp_path, "--products", "60", "--rest-s", "0.3", "--keeps")
    last = spacious.members(job)[2]
    spacious.command("inject", "slow-node", "--node", last, "-o", "cores=0.05")
    eviction = _until(spacious, job, "eviction")
    assert (eviction["node"], eviction["together"]) == (last, [last])
    # It is slow still, and the others are not.
    tested = _until(spacious, job, "suspects_tested")
    spacious.command("inject", "--undo")
    assert [suspect["node"] for suspect in tested["at_fault"]] == [last], tested
    assert "it computes at" in tested["reason"]
    print(f"evicted to tested {_seconds(eviction, tested):.1f} s: {tested['reason']}")
    (tmp_path / "stop").touch()
    assert job.exit_code() == 0
