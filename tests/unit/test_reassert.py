"""What the bus has under a node's key is put right when it is not the truth."""

from __future__ import annotations

import msgspec

from holdfast import desired
from holdfast.bus.memory import MemoryBroker
from holdfast.desired import NodeDesired, Placement
from holdfast.event_parts import JobSpec
from holdfast.subjects import DESIRED_BUCKET, desired_key
from holdfast_controller.reassert import assert_orders, correction

SPEC = JobSpec(name="job", script="train.py", cwd="/", directory="/jobs/job")
PLACEMENT = Placement(job=SPEC, node_rank=0, master_addr="127.0.0.1", master_port=29500)
TRUTH = NodeDesired(node="node-0", epoch=2, generation=5, job="job", placement=PLACEMENT)


def test_the_truth_stays() -> None:
    assert correction(desired.encode(TRUTH), TRUTH) is None


def test_what_is_lost_unreadable_or_older_is_replaced() -> None:
    older = msgspec.structs.replace(TRUTH, generation=4)
    for body in (None, b"\xff", desired.encode(older)):
        assert correction(body, TRUTH) == TRUTH


def test_another_order_under_the_same_fence_is_replaced() -> None:
    other = msgspec.structs.replace(TRUTH, placement=None)
    assert correction(desired.encode(other), TRUTH) == TRUTH


def test_an_order_that_was_never_given_is_superseded_by_name() -> None:
    forged = msgspec.structs.replace(TRUTH, epoch=10**9, generation=1, placement=None)
    right = correction(desired.encode(forged), TRUTH)
    assert right == msgspec.structs.replace(TRUTH, supersedes=(10**9, 1))


async def test_a_round_asks_for_the_orders_once_and_again_only_for_what_differs() -> None:
    bus = MemoryBroker().client("controller")
    truths = [msgspec.structs.replace(TRUTH, node=f"node-{number}") for number in range(20)]
    for truth in truths[1:]:
        await bus.put(DESIRED_BUCKET, desired_key(truth.node), desired.encode(truth))
    asked = 0

    def orders() -> list[NodeDesired]:
        nonlocal asked
        asked += 1
        return truths

    await assert_orders(bus, orders)
    assert await bus.get(DESIRED_BUCKET, desired_key("node-0")) == desired.encode(truths[0])
    assert asked == 3
    await assert_orders(bus, orders)
    assert asked == 5
