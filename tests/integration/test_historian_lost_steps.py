"""Views of the steps that failures cost: where each number comes from, and what is not known."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events import (
    FailSlowLocated,
    FirstStep,
    JobFinished,
    KeepingSpaced,
    NodeLost,
    ProcessExited,
    StepsNumbered,
)
from holdfast.fresh_ids import uuid7
from tests.integration.historian_scene import (
    GENERATIONS,
    INCIDENTS,
    Story,
    assert_phases_add_up,
    database,
    one,
    query,
    record,
)

pytestmark = pytest.mark.integration
SPACED = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "chaos_checks.py"))["SPACED"]


urls = database("historian_lost_steps")


async def test_an_attempt_that_ends_before_its_first_step_loses_none(urls: dict[str, str]) -> None:
    """Its ranks may have found that a vault was away: the next attempt goes on from the newest step."""
    story = Story("short")
    story.submit()
    story.start(0.001, 0.5)
    first = story.kill(10.0, step=350)
    story.open(10.005, first, failed_step=350)
    start = len(story.events)
    story.start(10.006, 10.2)
    story.events[start:] = [event for event in story.events[start:] if event.type != "first_step"]
    second = story.kill(18.0, step=-1)
    story.reattempt(18.003, second)
    story.start(18.004, 20.3, restore=348)
    await record(urls["historian"], story.events)
    assert [row["lost_steps"] for row in await query(urls["reader"], GENERATIONS, "short")] == [None, None, 2]


async def test_lost_steps_are_counted_from_what_the_ranks_restored(urls: dict[str, str]) -> None:
    """While a service was away the job made checkpoints that no order could name."""
    story = Story("behind")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(10.0, step=833)
    story.open(16.0, died, failed_step=833)
    story.start(16.01, 16.2, restore=540, restored=830)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, "behind")
    assert (row["restore_step"], row["lost_steps"]) == (830, 3)


async def test_steps_without_numbers_of_their_own_tell_of_none_that_were_lost(urls: dict[str, str]) -> None:
    story = Story("unnumbered")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(10.0, step=833)
    story.open(10.1, died, failed_step=833)
    story.start(10.2, 11.0)
    story.say(FirstStep, 11.0, node="n1", step=0, completed_at=story.at(11.0), is_numbered=False)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, "unnumbered")
    assert row["lost_steps"] is None and row["total_s"] is not None


COUNTED: dict[str, Any] = {"is_numbered": False, "step_source": "optimizer"}
RESTORED: dict[str, Any] = {"step_source": "restored", "step_source_name": "iter_num in ckpt.pt"}
ETTR = "select * from historian.ettr where job = $1"
JOBS = "select * from historian.jobs where job = $1"


@pytest.mark.parametrize(
    ("first", "second", "step", "lost"),
    [
        pytest.param(COUNTED, COUNTED, 0, 373, id="it began again"),
        pytest.param(COUNTED, RESTORED, 300, 73, id="it restored"),
        pytest.param(COUNTED, COUNTED | {"is_start_unknown": True}, 0, None, id="it restored what shows no step"),
        pytest.param(COUNTED | {"is_start_unknown": True}, COUNTED, 0, None, id="it had done so before"),
        pytest.param(COUNTED, RESTORED, 1200, None, id="the restored number counts something else"),
    ],
)
async def test_steps_that_no_script_reports(
    urls: dict[str, str],
    request: pytest.FixtureRequest,
    first: dict[str, Any],
    second: dict[str, Any],
    step: int,
    lost: int | None,
) -> None:
    """A job that was killed at its 373rd step: what it lost is a number in every view, or null in every view."""
    story = Story(request.node.callspec.id.replace(" ", "-"))
    story.submit()
    story.start(0.001, 0.5, **first)
    died = story.kill(10.0, step=372)
    story.open(10.1, died, failed_step=372)
    of_second: dict[str, Any] = second | {"step": step}
    story.start(10.2, 11.0, **of_second)
    story.close(20.0)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, story.job)
    assert (row["lost_steps"], row["step_source"]) == (lost, second["step_source"])
    assert row["is_start_known"] is not bool(second.get("is_start_unknown"))
    assert (await one(urls, JOBS, story.job))["lost_steps"] == lost
    assert (await one(urls, INCIDENTS, story.job))["lost_steps"] == lost
    ettr = await one(urls, ETTR, story.job)
    assert (ettr["ettr"] is None) == (lost is None)


@pytest.mark.parametrize("outcome", ["completed", "stopped"])
async def test_what_a_job_lost_is_unknown_if_its_last_generation_ended_without_a_step_that_was_seen(
    urls: dict[str, str], outcome: str
) -> None:
    """As of a script that applies gradients by hand."""
    story = Story(f"by-hand-{outcome}")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(10.0, step=-1)
    story.open(10.1, died, failed_step=-1)
    story.start(10.2, 11.0)
    story.close(20.0)
    story.say(JobFinished, 20.0, outcome=outcome, exit_code=0, reason="its ranks have ended")
    await record(urls["historian"], [event for event in story.events if event.type != "first_step"])
    assert (await one(urls, JOBS, story.job))["lost_steps"] is None
    assert (await one(urls, INCIDENTS, story.job))["lost_steps"] is None
    assert (await one(urls, ETTR, story.job))["ettr"] is None


async def test_of_a_job_without_steps_that_is_stopped_by_hand_no_number_of_lost_ones_is_told(
    urls: dict[str, str],
) -> None:
    story = Story("stopped-by-hand")
    story.submit()
    story.start(0.001, 0.5)
    story.say(JobFinished, 20.0, outcome="stopped", exit_code=143, reason="asked by a person")
    await record(urls["historian"], [event for event in story.events if event.type != "first_step"])
    job = await one(urls, JOBS, story.job)
    assert (job["lost_steps"], job["incidents"], job["last_step"]) == (None, 0, None)


async def test_a_restart_without_a_failure_may_cost_steps_as_well(urls: dict[str, str]) -> None:
    """In place of a slow node; the script goes on from its own checkpoint."""
    story = Story("replaced")
    story.submit()
    story.start(0.001, 0.5)
    story.steps(0, 57, 9.9)
    found = story.say(FailSlowLocated, 10.0, asked=uuid7(), nodes=("n2",), summary="n2 is slow")
    story.open(10.1, found, failed_step=-1, symptom="mfu_decline")
    story.start(10.2, 11.0, restore=40, nodes=("n1", "n3"))
    await record(urls["historian"], story.events)
    first, second = await query(urls["reader"], GENERATIONS, story.job)
    assert (first["lost_steps"], second["lost_steps"]) == (None, 17)
    assert (await one(urls, JOBS, story.job))["lost_steps"] == 17
    assert (await one(urls, INCIDENTS, story.job))["lost_steps"] == 17


async def test_a_lost_node_costs_all_steps_that_were_made(urls: dict[str, str]) -> None:
    """The controller records a job's step every ten seconds, and a node that is gone reports no last step."""
    story = Story("silent")
    story.submit()
    story.start(0.001, 0.5)
    story.steps(0, 57, 9.9)
    lost = story.say(NodeLost, 16.0, node="n2", generation=None, last_heard_at=story.at(10), silent_s=6.0)
    story.open(16.01, lost, failed_step=20, symptom="node_lost")
    story.start(16.03, 16.5, restore=40, nodes=("n1", "n3"))
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, story.job)
    assert row["lost_steps"] == 17


async def test_steps_of_a_rank_that_trained_on_alone_are_not_lost_steps_of_the_job(urls: dict[str, str]) -> None:
    """Ranks that average their weights every 15 steps: one dies at step 9, and the other makes five more without it."""
    story = Story("averaged")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(10.0, step=9)
    story.open(10.1, died, failed_step=9)
    story.say(ProcessExited, 11.9, node="n1", rank=0, local_rank=0, exit_code=1, exited_at=story.at(11.8), step=14)
    story.start(12.0, 13.0, restore=5)
    story.steps(0, 14, 11.7)
    story.events[-1] = msgspec.structs.replace(story.events[-1], generation=1)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, story.job)
    assert row["lost_steps"] == 4
    assert (await one(urls, INCIDENTS, story.job))["lost_steps"] == 4


async def test_steps_that_the_scripts_output_numbers(urls: dict[str, str]) -> None:
    """Two generations count from 0; the script's own numbers, from 1 on, show that 46 of 146 steps were lost."""
    story = Story("printed")
    story.submit()
    story.start(0.001, 0.5, **COUNTED)
    story.say(StepsNumbered, 1.0, node="n1", step=1, step_source_name="iteration in its output")
    died = story.kill(10.0, step=145)
    story.open(10.1, died, failed_step=145)
    unknown: dict[str, Any] = COUNTED | {"is_start_unknown": True}
    story.start(10.2, 11.0, **unknown)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, story.job)
    assert (row["lost_steps"], row["is_start_known"]) == (None, False)
    story.say(StepsNumbered, 12.0, node="n1", step=101, step_source_name="iteration in its output")
    await record(urls["historian"], story.events[-1:])
    _, row = await query(urls["reader"], GENERATIONS, story.job)
    assert (row["lost_steps"], row["restore_step"]) == (46, 100)
    assert (row["is_start_known"], row["step_source"]) == (True, "log")
    job = await one(urls, JOBS, story.job)
    assert (job["lost_steps"], job["step_source"]) == (46, "iteration in its output")
    assert (await one(urls, ETTR, story.job))["ettr"] is not None


async def test_phases_of_all_these_incidents_add_up(urls: dict[str, str]) -> None:
    assert await assert_phases_add_up(urls["reader"]) >= 1


async def test_the_soak_allows_for_steps_that_were_kept_apart(urls: dict[str, str]) -> None:
    """`bench/chaos.py` has SQL of its own: which distance of kept steps was told for the steps that were lost."""
    story = Story("apart")
    story.submit()
    story.start(0.001, 0.5)
    for at_s, step, every in ((1.0, 32, 4), (1.1, 32, 8), (2.0, 128, 1)):
        story.say(KeepingSpaced, at_s, node="n1", step=step, every=every)
    story.start(3.0, 3.5, restore=128)
    await record(urls["historian"], story.events)
    allowed = {
        (generation, first, last): (await one(urls, SPACED, "apart", generation, first, last))["every"]
        for generation, first, last in ((1, 10, 31), (1, 24, 33), (1, 120, 127), (1, 128, 140), (2, 24, 33))
    }
    assert list(allowed.values()) == [1, 8, 8, 1, 1]
