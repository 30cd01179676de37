"""A node may name any job in what it publishes: the coordinator acts on that of the job's own nodes only."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.events import AnyEvent, CheckpointSaved, KeepingInterrupted, StepRestorable
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.service import Coordinator
from tests.scenes.fed_service import NOW, FedService, begun, of

FROM: dict[type[AnyEvent], dict[str, Any]] = {
    CheckpointSaved: {"step": 9, "path": "/p", "checkpoint_bytes": 1, "took_s": 1.0, "steps": (9,)},
    KeepingInterrupted: {"step": 9, "reason": "its vault is lost"},
}


@pytest.fixture
async def service() -> FedService:
    made = FedService(Coordinator)
    await made.start()
    return made


@pytest.mark.parametrize("kind", FROM)
async def test_only_nodes_of_the_job_change_what_is_kept_of_it(service: FedService, kind: type[AnyEvent]) -> None:
    await service.feed(begun(2, "ab"))
    assert not await service.feed(of("c", kind, 2, **FROM[kind]))
    assert await service.feed(of("a", kind, 2, **FROM[kind]))


async def test_no_node_saves_a_step_for_a_job_that_has_not_begun(service: FedService) -> None:
    """The ranks of a job that has saved steps may not start from scratch."""
    assert not await service.feed(of("c", CheckpointSaved, 1, **FROM[CheckpointSaved]))
    assert not any(isinstance(made, StepRestorable) for made in await service.feed(begun(1, "ab")))


@pytest.mark.parametrize("kind", FROM)
async def test_an_event_may_arrive_before_its_generation(service: FedService, kind: type[AnyEvent]) -> None:
    await service.feed(begun(1, "ab"))
    assert not await service.feed(of("c", kind, 2, **FROM[kind]))
    assert len(await service.feed(begun(2, "ac"))) > 3  # a plan and two orders


def test_no_order_names_a_step_that_was_never_made() -> None:
    coordinator = Coordinator()
    for event in (begun(2, "ab"), of("a", KeepingInterrupted, 2, step=-1, reason="r")):
        coordinator.adopt(coordinator.on_event(event, NOW))
    for order in coordinator.orders_in_force():
        assert BackupOrder.decode(order.encode()) == order
