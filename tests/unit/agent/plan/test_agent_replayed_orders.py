"""Signed orders of the past, which somebody with access to the bus brought back, are not carried out."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.events import OrderRefused
from holdfast_agent.plan.actions import Fork
from holdfast_agent.plan.orders import CLOCKS_DIFFER_MAX
from tests.scenes.agent import START, Scene, order, running

LATER = START + timedelta(hours=1)


def beginning_at(scene: Scene) -> Scene:
    durable = msgspec.structs.replace(scene.state.durable, began_at=LATER)
    scene.state = msgspec.structs.replace(scene.state, durable=durable)
    return scene


def test_a_node_without_memory_obeys_no_order_that_was_signed_before_it_began_to_remember() -> None:
    scene = beginning_at(Scene())
    scene.zygote()
    scene.order(order(7), signed_at=LATER - CLOCKS_DIFFER_MAX - timedelta(seconds=1))
    (refused,) = scene.said(OrderRefused)
    assert (refused.generation, refused.newest_epoch, refused.newest_generation) == (7, 0, 0)
    assert not scene.forked and scene.state.durable.order is None
    # The controller answers a refusal by an order for the same, signed now.
    scene.order(order(7, supersedes=(0, 0)), signed_at=LATER)
    assert scene.forked == [(1, 7)]


def test_clocks_may_differ_a_little() -> None:
    scene = beginning_at(Scene())
    scene.zygote()
    scene.order(order(1), signed_at=LATER - CLOCKS_DIFFER_MAX)
    assert scene.did(Fork)


def test_the_order_of_living_ranks_is_that_of_the_past() -> None:
    scene = beginning_at(Scene())
    scene.zygote((0, 100), (1, 101), fence=(1, 3), order=order(3).encode())
    scene.order(order(3), signed_at=START)
    assert not scene.actions
    assert scene.state.durable.order == order(3)


def test_an_order_that_superseded_one_of_the_past_supersedes_none_of_the_present() -> None:
    scene = running(generation=2)
    # Kept since the controller wrote it: somebody had reported that the node refuses its order for this one.
    replayed = order(1, supersedes=(1, 2))
    scene.order(replayed, signed_at=START - timedelta(seconds=1))
    assert not scene.forked[1:] and scene.state.durable.order == order(2)
    (refused,) = scene.said(OrderRefused)
    assert not refused.is_obeyed


def test_what_was_superseded_does_not_come_back() -> None:
    scene = running(generation=5)
    scene.order(order(3, supersedes=(1, 5)))
    scene.stopped(0, 1)
    forked = list(scene.forked)
    scene.order(order(5))
    assert scene.forked == forked
    scene.order(order(6))
    assert scene.forked == [*forked, (1, 6)]
