"""What a node publishes about a job that it does not belong to is kept, apart from what the views show."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from holdfast.cli.doctor.reading_database import read_database
from holdfast.clock import system_now
from holdfast.events import (
    Event,
    FirstStep,
    GenerationStarted,
    JobSubmitted,
    NodesReleased,
    ProcessExited,
    RanksStopped,
    ReplayStarted,
)
from holdfast_historian.store import HistorianStore
from tests.integration.historian_scene import Story, database, one, query, record

pytestmark = pytest.mark.integration

urls = database("foreign_events")
APART = "select distinct node from historian.foreign_events where job = $1"
JOB = "select last_step from historian.jobs where job = $1"


def told(job: str) -> tuple[list[Event], list[Event], list[Event]]:
    """A job on n1 and n2, in its second generation on n1 and n3: its decisions, its nodes' events, and forged ones."""
    story = Story(job)
    story.submit()
    story.start(1.0, 1.5)
    story.steps(1, 7, 2.0)
    story.start(5.0, 5.5, restore=7, nodes=("n1", "n3"))
    story.steps(8, 9, 6.0)
    forged = Story(job)
    for generation, node in ((1, "n9"), (2, "n2"), (2, "n9"), (7, "n9"), (None, "n9")):
        forged.generation = generation or 0
        forged.nodes = (node,)
        forged.steps(5_000, 5_001, 7.0)
        forged.say(FirstStep, 7.0, node=node, step=6_000, completed_at=forged.at(7.0))
        forged.kill(7.1, step=7_000)
    is_decided = (JobSubmitted, GenerationStarted)
    return (
        [event for event in story.events if isinstance(event, is_decided)],
        [event for event in story.events if not isinstance(event, is_decided)],
        forged.events,
    )


@pytest.mark.parametrize("order", [*itertools.permutations((0, 1, 2))], ids=str)
async def test_in_any_order_of_arrival_the_views_show_the_jobs_own_nodes(
    urls: dict[str, str], order: tuple[int, ...]
) -> None:
    job = f"job-{''.join(map(str, order))}"
    parts = told(job)
    for part in order:
        await record(urls["historian"], parts[part])
        await record(urls["historian"], parts[part])  # the bus delivers again what was not acknowledged
    assert (await one(urls, JOB, job))["last_step"] == 9
    shown = await query(urls["reader"], "select node, generation from historian.events where job = $1", job)
    assert len(shown) == len(parts[0]) + len(parts[1])
    assert {row["node"] for row in await query(urls["reader"], APART, job)} == {"n9", "n2"}
    apart = await query(urls["reader"], "select from historian.foreign_events where job = $1", job)
    assert len(apart) == len(parts[2])


async def test_a_node_that_joins_may_publish_about_earlier_generations(urls: dict[str, str]) -> None:
    decisions, own, _ = told("joined")
    late = Story("joined")
    late.generation = 1
    late.say(ProcessExited, 9.0, node="n3", rank=1, local_rank=0, signal=9, exited_at=late.at(9.0), step=7)
    late.generation = 3
    replay: dict[str, Any] = {"phase": "vertical", "mesh": "dp=1", "until_step": 1, "deadline_s": 1.0, "reason": "r"}
    late.say(ReplayStarted, 10.0, groups=(("n1",), ("n4",)), **replay)
    late.say(FirstStep, 10.5, node="n4", step=1, completed_at=late.at(10.5))
    await record(urls["historian"], [*decisions, *own, *late.events])
    assert not await query(urls["reader"], APART, "joined")


async def test_a_node_that_left_before_it_had_ranks_may_report_that_it_has_none(urls: dict[str, str]) -> None:
    """The standby service granted it when its agent had been shut down already. The order to stop reaches the next."""
    decisions, own, _ = told("granted")
    late = Story("granted")
    late.generation = 2
    late.say(NodesReleased, 9.0, nodes=("n4",), epochs=(5,), reason="the agent of n4 was shut down")
    report = {"ranks": (), "killed": 0, "took_s": 0.01}
    late.say(RanksStopped, 9.1, node="n4", **report)
    late.generation = 3
    late.say(RanksStopped, 9.2, node="n4", **report)
    await record(urls["historian"], [*decisions, *own])
    await record(urls["historian"], late.events)
    apart = await query(urls["reader"], "select generation from historian.foreign_events where job = $1", "granted")
    assert [row["generation"] for row in apart] == [3]


async def test_what_is_old_is_dropped(urls: dict[str, str]) -> None:
    decisions, own, forged = told("old")
    await record(urls["historian"], [*decisions, *own, *forged])
    store = await HistorianStore.connect(urls["historian"])
    try:
        for past, rows in ((system_now() - timedelta(hours=1), True), (system_now() + timedelta(hours=1), False)):
            await store.prune_foreign_events(past)
            await store.prune_job_nodes(past)
            for table in ("foreign_events", "job_nodes"):
                kept = await query(urls["reader"], f"select from historian.{table} where job = 'old'")
                assert bool(kept) == rows
    finally:
        await store.close()


async def test_doctor_names_the_node(urls: dict[str, str]) -> None:
    decisions, own, forged = told("named")
    await record(urls["historian"], [*decisions, *own, *forged])
    facts, why = await read_database(urls["reader"], system_now)
    assert facts is not None, why
    assert not facts.foreign, "the start of their generation may be on its way"
    await query(urls["historian"], "update historian.foreign_events set recorded_at = recorded_at - interval '2 min'")
    facts, why = await read_database(urls["reader"], system_now)
    assert facts is not None, why
    assert {(it.node, it.job) for it in facts.foreign if it.job == "named"} == {("n9", "named"), ("n2", "named")}
