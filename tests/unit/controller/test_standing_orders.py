"""The order of each node as a function of its job's state: it stands as it was given until the next generation."""

from __future__ import annotations

from holdfast.settings.decisions.warm_up import WarmUpPolicy
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.phase import Running
from tests.scenes.failing_job import FailingJob


def test_an_order_asks_for_a_warm_up_for_as_long_as_it_stands() -> None:
    scene = FailingJob(rules=Rules(warm_up=WarmUpPolicy()))
    given = {order.node: order.placement for order in scene.controller.orders_in_force()}
    assert all(placement and placement.warm_up and placement.warm_up.tests_devices for placement in given.values())
    scene.train()
    assert isinstance(scene.state.phase, Running)
    # One that differed would be repaired on the bus: as if somebody had written the first one there.
    assert {order.node: order.placement for order in scene.controller.orders_in_force()} == given
