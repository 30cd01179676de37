"""What is different for a generation of ranks that checks its node instead of training."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engines.checks.checks_program import checks_of
from holdfast.events import DiagnosticResult, FirstStep, ProcessExited, Progress, RanksFinished, RanksStarted
from holdfast.events.parts.job import JobSpec
from holdfast.orders.node import NodeOrder, Placement
from holdfast.trainer.report import DIAGNOSTIC_RESULT, report
from holdfast_agent.companions.environment import RankFiles, rank_environment
from holdfast_agent.files.directories import CHECKS_KEPT, Directories
from holdfast_agent.plan.actions import Stop
from holdfast_agent.plan.inputs import StoreLost
from holdfast_agent.watching.reports import ReportFile, event_of
from tests.scenes.agent import INCIDENT, Scene, order

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def checks(generation: int = 1, **fields: Any) -> NodeOrder:
    it = order(generation, **fields)
    assert it.placement is not None
    return msgspec.structs.replace(it, placement=msgspec.structs.replace(it.placement, purpose="checks"))


def checking(**fields: Any) -> Scene:
    scene = Scene()
    scene.zygote()
    scene.order(checks(**fields))
    scene.run()
    return scene


def test_checks_make_no_steps_whatever_a_ledger_says() -> None:
    scene = checking()
    scene.observe(3, 3)
    scene.now += timedelta(seconds=5)
    scene.observe(4, 4)
    assert not scene.said(FirstStep) and not scene.said(Progress)
    assert scene.state.durable.crew is not None and not scene.state.durable.crew.stepped


def test_what_is_said_of_their_ranks_says_what_they_are_for() -> None:
    scene = checking(incident=INCIDENT)
    assert scene.said(RanksStarted)[0].purpose == "checks"
    scene.end(0, signal=9)
    exited = scene.said(ProcessExited)[0]
    assert (exited.purpose, exited.incident) == ("checks", INCIDENT)
    healthy = checking()
    healthy.end(0, code=0)
    healthy.end(1, code=0)
    assert healthy.said(RanksFinished)[0].purpose == "checks"


def test_they_go_on_without_their_store() -> None:
    scene = checking()
    scene.see(StoreLost, fence=(1, 1), reason="killed")
    assert not scene.did(Stop)


def test_cut_off_from_the_bus_they_end_as_ranks_that_stand_still_do() -> None:
    scene = checking()
    scene.observe(0, 0)
    scene.now += timedelta(seconds=200)
    scene.observe(0, 0, cut_off_s=200.0)
    assert scene.did(Stop)


def test_their_ranks_have_no_ledger_no_vault_nothing_to_restore_and_no_code_of_the_job(tmp_path: Path) -> None:
    given = {"NCCL_SOCKET_IFNAME": "ib0", "PATH": "/trap", "LD_PRELOAD": "/trap.so", "HOLDFAST_DIAGNOSTICS": "/trap"}
    job = JobSpec(name="j", script="t.py", nnodes=2, nproc_per_node=4, cwd="/", directory="/d", env=given)
    spec = checks_of(job, "quick")
    place = Placement(
        job=spec, node_rank=1, master_addr="h", master_port=1, restore_at_most=5, purpose="checks", submitted_at=NOW
    )
    it = NodeOrder(node="n", epoch=1, generation=1, job="j", placement=place)
    files = RankFiles(vault=tmp_path, ledger=tmp_path, reports=tmp_path / "r", error=tmp_path)
    assert list(place.ranks) == [1]
    found = rank_environment({}, it, place, 1, files)
    assert not {"HOLDFAST_LEDGER", "HOLDFAST_VAULT", "HOLDFAST_RESTORE_STEP"} & found.keys()
    assert given.items() & found.items() == {("NCCL_SOCKET_IFNAME", "ib0")}, "checks run as the agent's user"
    wanted = {"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_RANK": "0", "HOLDFAST_REPORTS": f"{tmp_path}/r"}
    assert wanted.items() <= found.items()


def test_a_result_becomes_evidence_of_the_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(path))
    monkeypatch.setenv("HOLDFAST_GENERATION", "4")
    report(
        DIAGNOSTIC_RESULT,
        run="j/4",
        test="all_gather",
        status="failed",
        symptom="network_error",
        peers=("m",),
        round=2,
        value=None,
        detail="timed out",
        done=3,
        total=9,
    )
    report(DIAGNOSTIC_RESULT, run="j/4", test="disk", status="good")
    told, wrong = ReportFile(path, 0).read()
    it = checks(4, incident=INCIDENT)
    event = event_of(told, it, "n", NOW)
    assert isinstance(event, DiagnosticResult)
    assert (event.status, event.peers, event.round, event.value) == ("failed", ("m",), 2, None)
    assert (event.job, event.generation, event.node, event.incident) == ("job-1", 4, "n", INCIDENT)
    assert event_of(wrong, it, "n", NOW) is None
    assert event_of(told, order(4), "n", NOW) is None, "no training reports results of checks"


def test_their_results_are_not_in_the_file_that_belongs_to_the_jobs_user(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    directories.prepare()
    directories.begin_checks("j", (1, 2))
    path = directories.rank_files("j", (1, 2), 0, "checks").reports
    assert path != directories.rank_files("j", (1, 1), 0).reports
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_their_output_does_not_take_the_place_of_the_trainings(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    directories.prepare()
    training = directories.log_stem("j", 0)
    training.parent.mkdir()
    training.with_suffix(".out").write_text("its last words")
    for generation in range(CHECKS_KEPT + 3):
        directories.begin_checks("j", (1, generation))
        stem = directories.checks_log_stem("j", (1, generation), 0)
        assert stem.parent.is_dir() and stem.parent.parent == training.parent
    assert len(list(training.parent.glob("checks-*"))) == CHECKS_KEPT
    assert training.with_suffix(".out").read_text() == "its last words"
