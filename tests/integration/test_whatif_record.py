"""What `holdfast whatif` reads of the record, by events that processes with a clock of their own have dated."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.clock import system_now
from holdfast.events import NodeLost, StepRestorable
from holdfast_controller.backtest.recorded_jobs import Record
from tests.integration.historian_scene import Story, database, query, record

pytestmark = pytest.mark.integration

urls = database("whatif_record")
HANDLED = "insert into controller.inbox (id, handled_at, subject) values ($1, $2, '')"


async def test_an_event_of_a_job_counts_whatever_its_date_and_one_of_a_node_when_it_was_handled(
    urls: dict[str, str],
) -> None:
    """In an hour of chaos the coordinator's clock was set back: its steps were dated before the job began."""
    story = Story("set-back")
    story.submit()
    story.start(0.001, 0.5)
    step = story.say(StepRestorable, -285.0, step=560, path="step-560", checkpoint_bytes=1)
    lost = {"job": None, "generation": None, "node": "n1", "last_heard_at": story.at(-290.0), "silent_s": 5.0}
    during, before = (story.say(NodeLost, -285.0, **lost) for _ in range(2))
    await record(urls["historian"], story.events)
    for event, handled_s in ((during, 5.0), (before, -284.0)):
        await query(urls["admin"], HANDLED, event.id, story.at(handled_s))
    reader = await Record.connect(urls["reader"])
    try:
        (job,) = await reader.jobs("set-back", None)
        seen = {it.event.id for it in (await reader.read(job, system_now() + timedelta(minutes=1))).seen}
    finally:
        await reader.close()
    assert {step.id, during.id} <= seen and before.id not in seen
