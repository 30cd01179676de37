"""The lines that `holdfast run` prints about a job."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.cli.follow.status_line import StatusLine
from holdfast.events import (
    CopiesRefused,
    GenerationStarted,
    IncidentClosed,
    IncidentOpened,
    NodesAwaited,
    Progress,
    StepNotPersisted,
    Withheld,
)
from holdfast.events.parts.ranks import RankProgress
from holdfast.fresh_ids import uuid7


def test_control_characters_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    line = StatusLine("job-1", out)
    line.print("a reason\x1b[2J\nand [holdfast] a forged line")
    line.print("Traceback:\n\tone\x07", keep="\n\t")
    assert out.getvalue() == (
        "[holdfast] a reason\\x1b[2J\\nand [holdfast] a forged line\n[holdfast] Traceback:\n\tone\\x07\n"
    )


def test_a_step_that_is_not_on_the_disk_is_reported() -> None:
    out = io.StringIO()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    event = StepNotPersisted(
        id=uuid7(), at=at, source="agent/n-1", node="n-1", job="job-1", step=300, reason="No space left", others=2
    )
    StatusLine("job-1", out).take(event)
    assert out.getvalue() == (
        "[holdfast] job-1: step 300 is not on the disk, nor are 2 before it: n-1: No space left\n"
    )


def test_a_node_without_copies_is_reported_with_the_reason() -> None:
    out = io.StringIO()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    event = CopiesRefused(
        id=uuid7(), at=at, source="agent/n-1", node="n-1", job="job-1", keeper="n-2", reason="certificate has expired"
    )
    StatusLine("job-1", out).take(event)
    assert out.getvalue() == "[holdfast] job-1: no copies go from n-1 to n-2: certificate has expired\n"


def test_a_job_that_trains_does_not_wait_for_nodes_and_is_told_why_it_is_not_restarted_for_them() -> None:
    out = io.StringIO()
    line = StatusLine("job-1", out)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    common: dict[str, Any] = {"at": at, "source": "test", "job": "job-1", "generation": 2}
    line.take(NodesAwaited(id=uuid7(), claim=uuid7(), wanted=1, available=0, trains_on=True, **common))
    line.take(Withheld(id=uuid7(), mechanism="no_way_to_grow", rung="reattempt", reason="n-2 came free", **common))
    line.take(Withheld(id=uuid7(), mechanism="fail_slow", rung="evict", reason="it only observes", **common))
    assert out.getvalue() == "[holdfast] job-1: n-2 came free\n"


def test_a_job_whose_steps_are_not_seen_is_reported_to_go_on() -> None:
    out = io.StringIO()
    line = StatusLine("job-1", out)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    common: dict[str, Any] = {"source": "test", "job": "job-1", "generation": 2}
    line.take(IncidentOpened(id=uuid7(), at=at, symptom="killed_by_signal", failed_step=-1, reason="killed", **common))
    line.take(GenerationStarted(id=uuid7(), at=at, nodes=("n-1",), world_size=1, reason="again", **common))
    for after_s, passed in ((3, 40), (11, 0), (12, 90), (13, 95)):
        ranks = (RankProgress(rank=0, step=-1, phase="init", collectives=passed, since_change_s=0.1),)
        line.take(Progress(id=uuid7(), at=at + timedelta(seconds=after_s), node="n-1", ranks=ranks, **common))
    assert out.getvalue().count("goes on 0 s after the failure; its steps are not seen") == 1


def test_a_command_that_shows_an_incident_is_named_if_its_record_stays() -> None:
    for is_kept in (True, False):
        out = io.StringIO()
        line = StatusLine("gpt", out)
        line.is_record_kept = is_kept
        closed = IncidentClosed(
            id=uuid7(),
            at=datetime(2026, 1, 1, tzinfo=UTC),
            source="controller",
            job="gpt",
            incident=uuid7(),
            outcome="recovered",
            attempts=1,
            reason="all is well",
        )
        line.take(closed)
        shown = out.getvalue().rstrip()
        assert shown.endswith("all is well") is not is_kept and ("holdfast show" in shown) is is_kept
