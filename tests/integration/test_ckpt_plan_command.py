"""`holdfast ckpt plan` and the view `ckpt.odds`, on a plan that the coordinator stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result

from holdfast.cli.connect.database import reading
from holdfast.cli.output.overview import Overview, database_overview, overview_section
from holdfast.events import CopiesMeasured, GenerationStarted, KeepingSpaced
from holdfast.fresh_ids import uuid7
from holdfast.store.postgres import PostgresStore
from holdfast_ckpt.service import Coordinator
from tests.integration.commands_scene import Scene, data, holdfast
from tests.integration.historian_scene import new_database, query, record

pytestmark = pytest.mark.integration

NODES = ("a", "b", "c", "d")
NOW = datetime.now(UTC)


def _started(generation: int, nodes: tuple[str, ...]) -> GenerationStarted:
    return GenerationStarted(
        id=uuid7(),
        at=NOW + timedelta(seconds=generation),
        source="controller",
        job="gpt",
        generation=generation,
        reason="test",
        nodes=nodes,
        world_size=4,
        nproc_per_node=1,
        mesh="pp=2,dp=2",
        submitted_at=NOW,
        vaults=tuple(f"{node}.local:7000" for node in nodes),
    )


def _measured(node: str, rank: int, keeper: str) -> CopiesMeasured:
    return CopiesMeasured(
        id=uuid7(),
        at=NOW,
        source=f"agent/{node}",
        job="gpt",
        generation=2,
        node=node,
        step=7,
        ranks=(rank,),
        keeper=keeper,
        backup_bytes=2_000_000,
        took_s=0.01,
    )


def _spaced() -> KeepingSpaced:
    common = {"id": uuid7(), "at": NOW, "source": "agent/a", "node": "a", "job": "gpt", "generation": 2}
    return KeepingSpaced(**common, step=96, every=8, rank=3, keep_s=0.12, step_s=1.0)


async def _store_plan(url: str) -> None:
    """Decide and write as the coordinator does."""
    coordinator, store = Coordinator(), await PostgresStore.connect(url, "ckpt", application_name="test")
    for event in (_started(2, NODES), _measured("a", 0, "d"), _spaced()):
        effect = coordinator.on_event(event, NOW)
        coordinator.adopt(effect)
        for rows in (effect.rows, coordinator.on_time(NOW, NOW).rows):
            async with store.transaction() as tx:
                for row in rows:
                    assert row.row is not None
                    await tx.save(row.table, row.key, row.row)
    await store.close()


@pytest.fixture(scope="module")
def scene(embedded_postgres: str) -> Scene:
    scene = Scene(asyncio.run(new_database(embedded_postgres, "ckpt_plan_command")))
    asyncio.run(scene.set_up())
    asyncio.run(_store_plan(scene.urls["ckpt"]))
    return scene


def _plan(scene: Scene, *arguments: str) -> Result:
    result = holdfast(scene, "ckpt", "plan", *arguments)
    assert "Traceback" not in result.output
    return result


def test_the_plan_names_keepers_and_the_odds_of_each_loss(scene: Scene) -> None:
    lines = [line.split() for line in _plan(scene, "gpt").stdout.splitlines()]
    assert ["a", "d", "7", "2", "MB"] in lines and ["b", "c", "-", "-"] in lines
    (ours,) = (line for line in lines if line[:3] == ["cross-group", "(in", "use)"])
    # Of six pairs two keep each other's copies; any three of the four contain a pair; any group leaves all.
    assert ours[3:] == ["1", "x,", "2", "MB", "a", "node", "100", "%", "66.7", "%", "0.0", "%", "100", "%", "100", "%"]
    assert any(line[:4] == ["cross-group,", "two", "copies", "*"] for line in lines)


def test_the_plan_names_the_steps_that_ranks_keep_and_what_a_restart_repeats(scene: Scene) -> None:
    (line,) = (it for it in _plan(scene, "gpt").stdout.splitlines() if "again" in it)
    assert line == (
        "from step 96 on one step in 8 is kept in memory: keeping one costs rank 3 0.12 s, its steps take 1 s. "
        "A restart trains up to 16 steps again."
    )
    assert data(_plan(scene, "gpt", "--json"))["kept"]["every"] == 8


def test_whoever_looks_at_a_job_sees_that_it_keeps_some_steps_only(scene: Scene) -> None:
    about = "from step 96 on one step in 8 is kept in memory: keeping one costs rank 3 0.12 s, its steps take 1 s"
    (line,) = (it for it in holdfast(scene, "jobs", "gpt").stdout.splitlines() if "keeps" in it)
    assert " ".join(line.split()) == f"keeps one step in 8: {about}"
    assert not any("keeps" in it for it in holdfast(scene, "jobs", "failed").stdout.splitlines())
    overview = asyncio.run(_overview(scene.urls["reader"]))
    assert f"Job gpt: {about}. A restart trains up to 16 steps again" in overview_section(overview).splitlines()
    assert {job.job: job.kept_every for job in overview.jobs}["gpt"] == 8


def test_an_incident_s_lost_steps_are_explained_by_what_its_generation_kept(scene: Scene) -> None:
    """What the generation after it keeps has nothing to do with them."""
    assert "steps lost: 2\n" in holdfast(scene, "show", scene.recovered).stdout
    scene.story.generation, events = 1, len(scene.story.events)
    scene.story.say(KeepingSpaced, 0.6, source="agent/n1", node="n1", step=32, every=4)
    scene.story.generation = 2
    scene.story.say(KeepingSpaced, 10.3, source="agent/n1", node="n1", step=32, every=8)
    asyncio.run(record(scene.urls["historian"], scene.story.events[events:]))
    assert "steps lost: 2 (one step in 4 was kept in memory)" in holdfast(scene, "show", scene.recovered).stdout


async def _overview(url: str) -> Overview:
    async with reading(url) as connection:
        return await database_overview(connection)


def test_the_loss_of_named_nodes(scene: Scene) -> None:
    assert "every shard of job gpt is left in memory without a, b" in _plan(scene, "gpt", "--lost", "a,b").stdout
    assert "without a, d the shards of a, d are in no memory" in _plan(scene, "gpt", "--lost", "a, d").stdout
    assert data(_plan(scene, "gpt", "--lost", "d,a", "--json"))["lost_shards"] == ["a", "d"]
    unknown = _plan(scene, "gpt", "--lost", "a,x")
    assert unknown.exit_code == 1 and "x: not among the nodes of job gpt" in unknown.stderr


def test_a_job_without_a_plan(scene: Scene) -> None:
    late, other = _plan(scene, "late"), _plan(scene, "other")
    assert late.exit_code == 1 and "has no backup plan" in late.stderr
    assert other.exit_code == 1 and "there is no job named other" in other.stderr


def test_sql_has_the_odds(scene: Scene) -> None:
    text = "select loss, losses, survived, share from ckpt.odds where job = 'gpt' and in_use and loss ~ 'machine'"
    rows = asyncio.run(query(scene.urls["reader"], text + " order by loss"))
    assert [tuple(row) for row in rows] == [
        ("1 machine", 4, 4, 1.0),
        ("2 machines", 6, 4, pytest.approx(4 / 6)),
        ("3 machines", 4, 0, 0.0),
    ]
