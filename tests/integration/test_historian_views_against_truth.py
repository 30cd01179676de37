"""The views of a simulated cluster, compared with what its world knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise

import pytest
import pytest_asyncio

from holdfast.events import JobFinished
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.policies.policy import TODAY
from holdfast_proving.scenario.load import load_scenario
from holdfast_proving.world.agenda import seconds_of
from holdfast_proving.world.training import Training
from tests.integration.historian_scene import assert_phases_add_up, new_database, query, record

pytestmark = pytest.mark.integration

SCENARIOS = ("trial", "trial-inside", "doubts")


@lru_cache(maxsize=len(SCENARIOS))
def simulated(scenario: str) -> Cluster:
    return Cluster(load_scenario(scenario), 1, TODAY).run()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SCENARIOS)
async def recorded(
    request: pytest.FixtureRequest, embedded_postgres: str
) -> AsyncIterator[tuple[Cluster, dict[str, str]]]:
    cluster = simulated(request.param)
    urls = await new_database(embedded_postgres, f"historian_truth_{request.param.replace('-', '_')}")
    await record(urls["historian"], (event for _, event in cluster.log))
    yield cluster, urls


async def test_ettr_is_the_share_of_productive_time(recorded: tuple[Cluster, dict[str, str]]) -> None:
    cluster, urls = recorded
    rows = await query(urls["reader"], "select * from historian.ettr_between(null, $1)", cluster.agenda.now())
    for training in lived_once(cluster):
        (row,) = (row for row in rows if row["job"] == training.job)
        # The world's book goes on after the end of a job.
        spent_s = training.book.spent_s
        total_s = training.book.total_s - spent_s.get("ended", 0.0)
        # Slow steps are steps; those after bad numbers look like new ones until they are repeated.
        stepping_s = sum(spent_s.get(cause, 0.0) for cause in ("productive", "slow", "spoiled", "redone"))
        assert row["wall_s"] == pytest.approx(total_s, abs=1.0)
        # The record knows whole steps: at each standstill the truth has two parts of one.
        off_s = 2 * training.plan.step_s * (1 + len(training.book.stretches))
        assert off_s < 0.02 * total_s
        assert row["training_s"] == pytest.approx(stepping_s, abs=off_s)
        productive_s = spent_s["productive"] + spent_s.get("slow", 0.0)
        assert row["productive_s"] == pytest.approx(productive_s, abs=off_s)
        assert row["ettr"] == pytest.approx(row["productive_s"] / total_s, rel=0.001)


async def test_each_standstill_is_a_generation_with_its_times(recorded: tuple[Cluster, dict[str, str]]) -> None:
    cluster, urls = recorded
    for training in lived_once(cluster):
        rows = await query(
            urls["reader"],
            "select first_step_at, ended_at from historian.generations "
            "where job = $1 and first_step_at is not null order by generation",
            training.job,
        )
        now = cluster.agenda.now()
        trained = [(seconds_of(row["first_step_at"]), seconds_of(row["ended_at"] or now)) for row in rows]
        truth = list(trainings(training, finished_s(cluster, training.job)))
        assert len(trained) == len(truth), f"{training.job}: {trained} in place of {truth}"
        for (first_step_s, ended_s), (began_s, halted_s) in zip(trained, truth, strict=True):
            assert first_step_s == pytest.approx(began_s, abs=2 * training.plan.step_s)
            assert ended_s == pytest.approx(halted_s, abs=2 * training.plan.step_s)


async def test_phases_of_every_incident_add_up(recorded: tuple[Cluster, dict[str, str]]) -> None:
    """Also of incidents with several attempts, checks, replays, pauses, and of those that are open or failed."""
    _, urls = recorded
    assert await assert_phases_add_up(urls["reader"]) > 3
    rows = await query(urls["reader"], "select distinct phase from historian.incident_phases")
    assert {row["phase"] for row in rows} >= {"detect", "decide", "stop", "start", "first step"}


async def test_ettr_of_one_hour(recorded: tuple[Cluster, dict[str, str]]) -> None:
    cluster, urls = recorded
    training = lived_once(cluster)[0]
    lost = [stretch for stretch in training.book.stretches if stretch.cause != "ended"]
    worst = max(lost, key=lambda it: it.until_s - it.since_s)
    at = training_began(cluster) + timedelta(seconds=worst.since_s)
    (row,) = await query(
        urls["reader"],
        "select * from historian.ettr_between($1, $2) where job = $3",
        *(at, at + timedelta(hours=1), training.job),
    )
    lost_s = sum(
        min(it.until_s, worst.since_s + 3600) - max(it.since_s, worst.since_s)
        for it in lost
        if it.until_s > worst.since_s and it.since_s < worst.since_s + 3600
    )
    assert row["training_s"] == pytest.approx(3600 - lost_s, abs=0.01 * 3600)


def lived_once(cluster: Cluster) -> list[Training]:
    """Return the jobs that were not submitted again: the record knows each submission as a job."""
    return [training for training in cluster.trainings if training.job.endswith("-1")]


def trainings(training: Training, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each time in which the job completed a step at least."""
    for it, following in pairwise([*training.book.stretches, None]):
        if it.until_s >= until_s:
            return
        halted_s = following.since_s if following else until_s
        if halted_s - it.until_s >= training.plan.step_s:
            yield it.until_s, halted_s


def finished_s(cluster: Cluster, job: str) -> float:
    ends = (at_s for at_s, event in cluster.log if isinstance(event, JobFinished) and event.job == job)
    return next(ends, cluster.agenda.seconds)


def training_began(cluster: Cluster) -> datetime:
    return cluster.agenda.now() - timedelta(seconds=cluster.agenda.seconds)
