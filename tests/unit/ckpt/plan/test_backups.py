"""Orders to vaults: who keeps copies, and who is asked for those from before."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast.events import GenerationStarted
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder, Placement
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.settings.load import ConfigRefused, load
from holdfast_agent.companions.environment import RankFiles, rank_environment
from holdfast_ckpt.plan.backup_plan import BackupStrategy
from holdfast_ckpt.plan.backups import LAYOUTS_REMEMBERED, SOURCES_MAX, job_of_node, orders_of, plan_generation
from holdfast_ckpt.plan.records import JobBackups

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = CheckpointPolicy()


def started(generation: int, nodes: tuple[str, ...], **changes: object) -> GenerationStarted:
    event = GenerationStarted(
        id=uuid7(),
        at=NOW + timedelta(seconds=generation),
        source="controller",
        job="job",
        generation=generation,
        reason="test",
        nodes=nodes,
        world_size=len(nodes),
        nproc_per_node=1,
        submitted_at=NOW,
        vaults=tuple(f"{node}.local:7000" for node in nodes),
    )
    return msgspec.structs.replace(event, **changes)


def plan(before: JobBackups | None, event: GenerationStarted) -> JobBackups:
    made = plan_generation(before, event, POLICY, {}, event.id)
    assert made is not None
    return made


def sources(order: BackupOrder) -> list[str]:
    return [source.node for source in order.sources]


def test_an_order_is_complete() -> None:
    event = started(1, ("a", "b"), nproc_per_node=4, world_size=8, mesh="pp=2,tp=4")
    first, second = orders_of(plan(None, event))
    assert (first.node, first.ranks, second.node, second.ranks) == ("a", range(4), "b", range(4, 8))
    assert (first.job, first.generation, first.world_size) == ("job", 1, 8)
    assert first.submitted_ms == round(NOW.timestamp() * 1000)
    assert first.keeper and (first.keeper.node, first.keeper.host, first.keeper.port) == ("b", "b.local", 7000)
    assert first.cause == event.id and first.sources == ()


def test_a_keeper_is_in_another_rack() -> None:
    nodes, racks = ("a", "b", "c", "d"), ("r1", "r1", "r2", "r2")
    neighbours, apart = plan(None, started(1, nodes)), plan(None, started(1, nodes, racks=racks))
    assert (neighbours.layout.keepers, apart.layout.keepers) == ((1, 0, 3, 2), (2, 3, 0, 1))
    assert {it.loss: (it.survived, it.losses) for it in apart.odds[0].odds}["rack"] == (2, 2)
    # A node was replaced by one elsewhere: the same keepers, other odds.
    moved = plan(apart, started(2, ("a", "x", "c", "d"), racks=("r1", "r3", "r2", "r2")))
    assert {it.loss: (it.survived, it.losses) for it in moved.odds[0].odds}["rack"] == (3, 3)


def test_an_address_may_have_colons() -> None:
    (first, _) = orders_of(plan(None, started(1, ("a", "b"), vaults=("fd00::1:7000", "fd00::2:7001"))))
    assert first.keeper and (first.keeper.host, first.keeper.port) == ("fd00::2", 7001)


@pytest.mark.parametrize(("generation", "after"), [(1, False), (2, False), (3, True)])
def test_only_a_newer_generation_is_planned(generation: int, after: bool) -> None:
    before = plan(None, started(2, ("a", "b")))
    late = plan_generation(before, started(generation, ("c", "d")), POLICY, {}, uuid7())
    assert (late is not None) == after


def test_a_later_job_of_the_name_owes_nothing_to_the_earlier_one() -> None:
    before = plan(None, started(7, ("a", "b")))
    again = started(1, ("c", "d"), submitted_at=NOW + timedelta(days=1))
    assert [order.sources for order in orders_of(plan(before, again))] == [(), ()]
    assert plan_generation(plan(before, again), started(8, ("a", "b")), POLICY, {}, uuid7()) is None


def test_what_a_controller_of_before_says_is_no_ground_for_a_plan() -> None:
    assert plan_generation(None, started(1, ("a", "b"), submitted_at=None), POLICY, {}, uuid7()) is None
    assert plan_generation(None, started(1, ("a", "b"), nproc_per_node=0), POLICY, {}, uuid7()) is None


def test_sources_are_the_newest_first_each_once_never_the_node_itself_and_few() -> None:
    one = plan(None, started(1, ("a", "b")))
    two = plan(one, started(2, ("a", "c")))
    assert [sources(order) for order in orders_of(two)] == [["b"], ["a", "b"]]
    three = plan(two, started(3, ("d", "c")))
    assert [sources(order) for order in orders_of(three)] == [["c", "a", "b"], ["a", "b"]]
    four = plan(three, started(4, ("e", "f")))
    assert [sources(order) for order in orders_of(four)] == [["c", "d", "a", "b"], ["d", "c", "a", "b"]]
    assert all(len(order.sources) <= SOURCES_MAX for order in orders_of(four))


def test_restarts_in_place_push_nothing_out_and_what_is_remembered_is_bounded() -> None:
    made = plan(plan(None, started(1, ("a", "b"))), started(2, ("c", "b")))
    for generation in range(3, 20):
        made = plan(made, started(generation, ("c", "b")))
    assert [sources(order) for order in orders_of(made)] == [["b", "a"], ["c", "a"]]
    for generation in range(20, 40):
        made = plan(made, started(generation, (f"n{generation}", "b")))
    assert len(made.earlier) == LAYOUTS_REMEMBERED


def test_a_node_is_asked_where_its_vault_is_now() -> None:
    before = plan(None, started(1, ("a", "b"), vaults=("a:1", "b:1")))
    moved = plan(before, started(2, ("c", "b"), vaults=("c:1", "b:2")))
    first, _ = orders_of(moved)
    assert [(source.node, source.port) for source in first.sources] == [("b", 2), ("a", 1)]


def test_how_often_a_step_goes_to_the_disk_is_the_job_s_to_say_and_else_the_cluster_s() -> None:
    said = plan(None, started(1, ("a", "b"), persist_every="500"))
    assert [order.persist_every for order in orders_of(said)] == [500, 500]
    first = plan(None, started(1, ("a",)))
    assert (first.persist, orders_of(first)[0].persist_every) == ("10m", 0)  # a step may take any time yet
    timed = msgspec.structs.replace(first, step_s=1.0, persist_every=512)
    assert orders_of(plan(timed, started(2, ("b",))))[0].persist_every == 512
    assert orders_of(plan(timed, started(2, ("b",), persist_every="never")))[0].persist_every == 0


def test_a_node_serves_the_job_that_started_there_last() -> None:
    one, two = plan(None, started(1, ("a", "b"))), plan(None, started(2, ("b", "c"), job="other"))
    assert job_of_node([two, one]) == {"a": "job", "b": "other", "c": "other"}


def test_ranks_and_orders_name_the_submission_alike(tmp_path: Path) -> None:
    spec = JobSpec(name="job", script="s", cwd="/", directory="/d")
    files = RankFiles(vault=tmp_path, ledger=tmp_path, reports=tmp_path, error=tmp_path)
    for microseconds in range(122_900, 125_100, 50):
        at = NOW + timedelta(microseconds=microseconds)
        place = Placement(job=spec, node_rank=0, master_addr="h", master_port=1, submitted_at=at)
        order = NodeOrder(node="a", epoch=1, generation=1, job="job", placement=place)
        said = rank_environment({}, order, place, 0, files)["HOLDFAST_JOB_SUBMITTED_MS"]
        assert int(said) == orders_of(plan(None, started(1, ("a",), submitted_at=at)))[0].submitted_ms


def test_the_setting_names_the_strategies_that_there_are() -> None:
    for strategy in BackupStrategy:
        settings, listed = load({"HOLDFAST_CHECKPOINT_BACKUP_STRATEGY": strategy.value})
        assert BackupStrategy(settings.checkpoint.backup_strategy) is strategy
        assert strategy.value in {row.value for row in listed if row.key == "checkpoint.backup_strategy"}
    for wrong in (
        {"HOLDFAST_CHECKPOINT_BACKUP_STRATEGY": "nearby"},
        {"HOLDFAST_CHECKPOINT_BACKUP_EVERY": "0"},
        {"HOLDFAST_CHECKPOINT_BACKUP_EVERY": "1025"},
        {"HOLDFAST_CHECKPOINT_PERSIST_EVERY": "now and then"},
        {"HOLDFAST_CHECKPOINT_PERSIST_BYTES_PER_S": "-1"},
        {"HOLDFAST_CHECKPOINT_MEMORY_STEPS": "1"},
    ):
        with pytest.raises(ConfigRefused):
            load(wrong)


def test_a_job_of_100_000_ranks_is_planned_again_in_seconds() -> None:
    nodes = tuple(f"node-{number}" for number in range(12_500))
    shape = {"nproc_per_node": 8, "world_size": 100_000, "mesh": "pp=10,dp=1250,tp=8"}
    begin = time.process_time()
    before = plan(None, started(1, nodes, **shape))
    after = plan(before, started(2, (*nodes[:-1], "spare"), **shape))
    assert len(orders_of(after)) == 12_500
    assert time.process_time() - begin < 10


def test_a_change_of_pace_holds_from_a_step_on() -> None:
    any_order = BackupOrder(
        node="a", job="job", submitted_ms=1, world_size=2, generation=1, node_rank=0, nproc_per_node=1
    )
    order = msgspec.structs.replace(any_order, every=1, every_before=4, every_from=10)
    assert [step for step in range(14) if order.is_sent(step, step - 1)] == [0, 4, 8, 10, 11, 12, 13]
    slower = msgspec.structs.replace(any_order, every=4, every_before=1, every_from=10)
    assert [step for step in range(8, 20) if slower.is_sent(step, step - 1)] == [8, 9, 12, 16]


def test_the_odds_follow_the_placement() -> None:
    first = plan(None, started(1, ("a", "b", "c", "d")))
    assert first.odds[0].in_use and [it.survived for it in first.odds[0].odds[:2]] == [4, 4]
    assert plan(first, started(2, ("a", "e", "c", "d"))).odds is first.odds
    without = started(3, ("a", "b", "c", "d"), vaults=("a:1", "", "c:1", "d:1"))
    assert [it.survived for it in plan(first, without).odds[0].odds[:2]] == [2, 0]
