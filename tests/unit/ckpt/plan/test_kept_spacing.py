"""A job whose ranks keep one step in so many: what is sent, pinned and written to the disk is one of those."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.events import BackupsPlanned, CopiesMeasured, KeepingSpaced, StepsCertified, StepTimeMeasured
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.plan import complete
from holdfast_ckpt.plan.certified import Reports
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.records import KeptSpacing
from holdfast_ckpt.service import Coordinator
from holdfast_ckpt.store import PLANS
from tests.scenes.fed_service import NOW, begun, of


class Scene:
    def __init__(self, persist: str = "500") -> None:
        self.coordinator = Coordinator()
        self.take(msgspec.structs.replace(begun(1, "ab"), persist_every=persist))

    def take(self, event: Any) -> list[object]:
        effect = self.coordinator.on_event(event, NOW)
        self.coordinator.adopt(effect)
        return [*effect.events, *effect.orders, *(row.row for row in effect.rows if row.table is PLANS)]

    @property
    def plan(self) -> Any:
        return self.coordinator._state.plans["job"]

    def persist_of_orders(self) -> set[int]:
        return {order.persist_every for order in self.coordinator.orders_in_force()}


def spaced(every: int, step: int, generation: int = 1, **fields: Any) -> KeepingSpaced:
    return of("a", KeepingSpaced, generation, every=every, step=step, **fields)


def measured(step_s: float) -> StepTimeMeasured:
    return of("a", StepTimeMeasured, median_s=step_s, p99_s=step_s, samples=9)


def copied(node: str, rank: int, step: int, coming: int | None) -> CopiesMeasured:
    keeper = "b" if node == "a" else "a"
    fields: dict[str, Any] = {"ranks": (rank,), "keeper": keeper, "backup_bytes": 1, "took_s": 0.1}
    return of(node, CopiesMeasured, step=step, coming_step=coming, **fields)


def certified(step: int, newest_step: int) -> StepsCertified:
    return of("a", StepsCertified, step=step, newest_step=newest_step)


def test_what_goes_to_the_disk_is_a_step_that_is_kept() -> None:
    scene = Scene()
    planned, *orders, plan = scene.take(spaced(32, 96, rank=1, keep_s=0.5, step_s=1.0))
    assert isinstance(planned, BackupsPlanned) and planned.persist_every == 512
    assert "one step in 512 goes to the disk, 500 were asked for" in planned.reason and "rank 1" in planned.reason
    assert [order.persist_every for order in orders if isinstance(order, BackupOrder)] == [512, 512]
    assert plan == scene.plan and scene.plan.kept.every == 32
    scene.take(spaced(1, 960))
    assert scene.persist_of_orders() == {500}


def test_a_distance_that_fits_needs_no_order() -> None:
    scene = Scene()
    assert scene.take(spaced(4, 96)) == [scene.plan]
    assert scene.plan.kept.every == 4 and scene.persist_of_orders() == {500}


def test_a_time_on_the_disk_is_never_closer_than_what_is_kept() -> None:
    scene = Scene("10s")
    scene.take(measured(1.0))
    assert scene.persist_of_orders() == {8}
    scene.take(spaced(32, 96))
    assert scene.persist_of_orders() == {32}
    scene.take(measured(0.1))
    assert scene.persist_of_orders() == {64}


def test_what_vaults_are_told_to_keep_is_a_step_that_will_be_there() -> None:
    """Named at the distance of kept steps: else it would count as missed before the first of them comes."""
    plan = Scene().plan
    timed = msgspec.structs.replace(plan, step_s=10.0, every=3, kept=KeptSpacing(every=16, step=32))
    assert complete.advance(timed, 100, Reports({}, {}), None, "d").coming == 144
    assert complete.advance(msgspec.structs.replace(timed, every=1), 100, Reports({}, {}), None, "d").coming == 112


@pytest.mark.parametrize("every", [7, 100, 150, 1000, 12_345])
@pytest.mark.parametrize("step_s", [0.05, 1.0, 30.0])
def test_a_script_that_saves_one_step_in_many_has_each_as_the_one_that_all_nodes_keep_twice(
    every: int, step_s: float
) -> None:
    """Reports of a save come long after the number that was named, and the second node's after the first's."""
    scene = Scene()
    scene.take(measured(step_s))
    found = []
    for save in range(every, 6 * every, every):
        named = scene.plan.coming
        for rank, node in enumerate("ab"):
            coming = save if named is not None and named <= save else None
            scene.take(copied(node, rank, save, coming))
            scene.take(certified(save - 1, save + 1))  # samples come at each step, and name nothing else meanwhile
        scene.take(certified(save, save + every - 1))
        found.append(scene.plan.complete.step if scene.plan.complete is not None else None)
    # The first save names one; those after it are kept if it was named in time.
    in_time = 2 * (lead_steps(step_s) or 0) <= every
    assert found[1:] == [2 * every, 3 * every, 4 * every, 5 * every] or not in_time, found
    if in_time:
        assert scene.plan.held is not None and scene.plan.held.step == 5 * every


def test_a_step_that_a_node_missed_is_given_up_and_another_is_named() -> None:
    plan = msgspec.structs.replace(Scene().plan, step_s=1.0, coming=112)

    def coming(newest_step: int, reports: Reports) -> int | None:
        return complete.advance(plan, newest_step, reports, None, "d").coming

    assert coming(9999, Reports({}, {0: 100, 1: 100})) == 112, "no node has come to it"
    assert coming(9999, Reports({0: 200}, {0: 200, 1: 100})) == 112, "one has not come to it"
    assert coming(300, Reports({0: 200}, {0: 300})) == 312, "one makes no copies, and the other has gone on long since"
    assert coming(300, Reports({0: 200, 1: 100}, {0: 200, 1: 300})) == 312, "one made a later step without keeping it"
    assert coming(300, Reports({0: 200, 1: 300}, {0: 200, 1: 300})) == 312, "each kept another"


def test_only_newer_reports_of_this_generation_count_and_the_next_one_keeps_every_step_again() -> None:
    scene = Scene()
    scene.take(spaced(8, 96))
    for late in (spaced(4, 64), spaced(2, 200, generation=2), spaced(2, 96)):
        scene.take(late)
        assert scene.plan.kept.every == 8
    scene.take(msgspec.structs.replace(begun(2, "ab"), persist_every="500"))
    assert scene.plan.kept == KeptSpacing()


def test_copies_that_fit_between_kept_steps_are_not_late() -> None:
    def late_nodes(every: int) -> frozenset[str]:
        scene = Scene()
        scene.take(measured(1.0))
        scene.take(spaced(every, 96))
        fields = {"step": 200, "ranks": (0,), "keeper": "b", "backup_bytes": 1, "took_s": 0.8}
        for seconds in (0, 10):  # the first begins a pace, which settles
            scene.coordinator.on_event(of("a", CopiesMeasured, **fields), NOW + timedelta(seconds=seconds))
        return scene.coordinator._state.paces["job"].late

    assert late_nodes(1) == {"a"}
    assert late_nodes(8) == frozenset()
