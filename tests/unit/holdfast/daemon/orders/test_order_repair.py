"""A wrong or missing order on the bus is repaired."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.orders.order_repair import REPAIRED_AT_ONCE, Correction, repair_orders
from holdfast.events.parts.job import JobSpec
from holdfast.orders.node import NodeOrder, Placement
from holdfast.orders.signatures import OrderSigner
from holdfast.subjects import DESIRED_BUCKET
from holdfast_controller.node_order_repair import correction, truths
from tests.scenes.order_keys import KEYS, SIGNER, private_keys, signed

SPEC = JobSpec(name="job", script="train.py", cwd="/", directory="/jobs/job")
PLACEMENT = Placement(job=SPEC, node_rank=0, master_addr="127.0.0.1", master_port=29500)
TRUTH = NodeOrder(node="node-0", epoch=2, generation=5, job="job", placement=PLACEMENT)


AT = datetime(2026, 1, 1, tzinfo=UTC)


def corrected(body: bytes | None) -> bytes:
    right = truths([TRUTH], SIGNER["controller"], lambda: AT)[TRUTH.key](body)
    assert right is not None
    return right


def test_the_truth_stays() -> None:
    assert correction(TRUTH, TRUTH) is None


def test_what_is_lost_not_signed_by_the_controller_or_older_is_replaced() -> None:
    older = msgspec.structs.replace(TRUTH, generation=4)
    for found in (None, older):
        assert correction(found, TRUTH) == TRUTH
    right = corrected(None)
    assert KEYS.read(NodeOrder, TRUTH.key, right).order == TRUTH
    unsigned, copied = TRUTH.encode(), signed(msgspec.structs.replace(TRUTH, node="node-1"))
    forged = private_keys("another cluster")["controller"]
    for body in (b"\xff", unsigned, copied, OrderSigner("controller", forged).sign(TRUTH, AT), signed(older, AT)):
        assert corrected(body) == right
    assert truths([TRUTH], SIGNER["controller"], lambda: AT)[TRUTH.key](right) is None


def test_another_order_under_the_same_fence_is_replaced() -> None:
    other = msgspec.structs.replace(TRUTH, placement=None)
    assert correction(other, TRUTH) == TRUTH


def test_an_order_that_was_never_given_is_superseded_by_name() -> None:
    forgotten = msgspec.structs.replace(TRUTH, epoch=10**9, generation=1, placement=None)
    right = correction(forgotten, TRUTH)
    assert right == msgspec.structs.replace(TRUTH, supersedes=(10**9, 1))
    # Nobody else's fence gets into a signed order.
    assert KEYS.read(NodeOrder, TRUTH.key, corrected(forgotten.encode())).order == TRUTH


async def test_a_round_asks_for_the_orders_once_and_again_only_for_what_differs() -> None:
    bus = MemoryBroker().client("controller")
    orders = [msgspec.structs.replace(TRUTH, node=f"node-{number}") for number in range(3 * REPAIRED_AT_ONCE)]
    for order in orders[1:]:
        await bus.put(DESIRED_BUCKET, NodeOrder.key_of(order.node), signed(order))
    asked = 0

    def now() -> dict[str, Correction]:
        nonlocal asked
        asked += 1
        return truths(orders, SIGNER["controller"], lambda: AT)

    await repair_orders(bus, now)
    assert await bus.get(DESIRED_BUCKET, NodeOrder.key_of("node-0")) == signed(orders[0], AT)
    assert asked == 3
    await repair_orders(bus, now)
    assert asked == 5


async def test_when_all_is_lost_the_truth_is_not_worked_out_for_each() -> None:
    bus = MemoryBroker().client("controller")
    orders = [msgspec.structs.replace(TRUTH, node=f"node-{number}") for number in range(3 * REPAIRED_AT_ONCE)]
    asked = 0

    def now() -> dict[str, Correction]:
        nonlocal asked
        asked += 1
        return truths(orders, SIGNER["controller"], lambda: AT)

    await repair_orders(bus, now)
    for order in orders:
        assert await bus.get(DESIRED_BUCKET, NodeOrder.key_of(order.node)) == signed(order, AT)
    assert asked == 5


async def test_what_was_decided_while_the_bus_was_read_is_not_undone() -> None:
    bus = MemoryBroker().client("controller")
    newer = msgspec.structs.replace(TRUTH, generation=6)
    await bus.put(DESIRED_BUCKET, NodeOrder.key_of(TRUTH.node), signed(newer, AT))
    answers = iter([[TRUTH], [newer]])

    await repair_orders(bus, lambda: truths(next(answers), SIGNER["controller"], lambda: AT))
    assert await bus.get(DESIRED_BUCKET, NodeOrder.key_of(TRUTH.node)) == signed(newer, AT)
