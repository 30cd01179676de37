"""A job whose ranks keep one step in so many: what is sent, pinned and written to the disk is one of those."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from holdfast.events import BackupsPlanned, CopiesMeasured, KeepingSpaced, StepTimeMeasured
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.plan import complete
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
    assert complete.advance(timed, 100, {}, None, "d").coming == 144
    assert complete.advance(msgspec.structs.replace(timed, every=1), 100, {}, None, "d").coming == 112


def test_a_script_that_keeps_one_step_in_a_hundred_has_a_step_that_all_nodes_keep_twice() -> None:
    """The first node's report comes long after the number that was named, and the second's after it."""
    named = complete.advance(msgspec.structs.replace(Scene().plan, step_s=1.0), 100, {0: 100, 1: 100}, None, "d")
    assert named.coming == 112
    waiting = complete.advance(named, 200, {0: 200, 1: 100}, None, "d")
    assert waiting.coming == 112
    both = complete.advance(waiting, 200, {0: 200, 1: 200}, None, "d")
    assert both.complete is not None and both.complete.step == 200
    # A node that has not made it by the next one is not waited for.
    assert complete.advance(waiting, 300, {0: 200, 1: 100}, None, "d").coming == 312


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
