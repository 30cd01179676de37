"""The lines that `holdfast run` prints about a job."""

import io
from datetime import UTC, datetime

from holdfast.cli.follow.status_line import StatusLine
from holdfast.events import CopiesRefused, StepNotPersisted
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
