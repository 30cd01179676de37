"""A node may name any job in what it publishes: the coordinator acts on that of the job's own nodes only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.events import AnyEvent, CheckpointSaved, GenerationStarted, KeepingInterrupted
from holdfast.fresh_ids import uuid7
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.service import Coordinator

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def coordinator() -> Coordinator:
    made = Coordinator()
    nodes = ("a", "b")
    started = GenerationStarted(
        id=uuid7(),
        at=NOW,
        source="controller",
        job="job",
        generation=2,
        reason="test",
        nodes=nodes,
        world_size=2,
        nproc_per_node=1,
        submitted_at=NOW,
        vaults=("a:1", "b:1"),
    )
    made.adopt(made.on_event(started, NOW))
    return made


def of(node: str, kind: type[AnyEvent], **fields: Any) -> Any:
    common = {"id": uuid7(), "at": NOW, "source": f"agent/{node}", "job": "job", "generation": 2, "node": node}
    return kind(**common, **fields)


FROM = {
    CheckpointSaved: {"step": 9, "path": "/p", "checkpoint_bytes": 1, "took_s": 1.0, "steps": (9,)},
    KeepingInterrupted: {"step": 9, "reason": "its vault is lost"},
}


@pytest.mark.parametrize("kind", FROM)
def test_only_nodes_of_the_job_change_what_is_kept_of_it(coordinator: Coordinator, kind: type[AnyEvent]) -> None:
    assert coordinator.on_event(of("c", kind, **FROM[kind]), NOW).is_nothing
    assert not coordinator.on_event(of("a", kind, **FROM[kind]), NOW).is_nothing


def test_no_order_names_a_step_that_was_never_made(coordinator: Coordinator) -> None:
    coordinator.adopt(coordinator.on_event(of("a", KeepingInterrupted, step=-1, reason="r"), NOW))
    for order in coordinator.orders_in_force():
        assert BackupOrder.decode(order.encode()) == order
