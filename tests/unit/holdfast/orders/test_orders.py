"""Each kind of order has its key, its message id and its form on the wire."""

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.orders.any_order import AnyOrder
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder

ID = "01890000-0000-7000-8000-000000000000"
UNTIL = datetime(2026, 1, 1, tzinfo=UTC)

BACKUP = BackupOrder(
    node="a", job="j", submitted_ms=7, world_size=2, generation=3, node_rank=0, nproc_per_node=1, cause=ID
)
EXPECTED: list[tuple[AnyOrder, str, str, bytes]] = [
    (
        NodeOrder(node="a", epoch=2, generation=3, cause=ID, supersedes=(4, 5)),
        "node.a",
        f"node.a-2-3-{ID}-(4, 5)",
        b'{"node":"a","epoch":2,"generation":3,"cause":"%s","supersedes":[4,5]}' % ID.encode(),
    ),
    (
        BACKUP,
        "backup.a",
        f"backup.a-7-3-{ID}",
        b'{"node":"a","job":"j","submitted_ms":7,"world_size":2,"generation":3,"node_rank":0,"nproc_per_node":1,'
        b'"cause":"%s"}' % ID.encode(),
    ),
    (CodeOrder(job="j", root="/r"), "code.j", "code.j-", b'{"job":"j","root":"/r"}'),
    (
        TraceOrder(id=ID, job="j", generation=1, until=UNTIL, native=True),
        "trace.j",
        f"trace.j-{ID}",
        b'{"id":"%s","job":"j","generation":1,"until":"2026-01-01T00:00:00Z","native":true}' % ID.encode(),
    ),
    (
        SlowOrder(id=ID, job="j", generation=1, until=UNTIL, is_over=True),
        "slow.j",
        f"slow.j-{ID}-over",
        b'{"id":"%s","job":"j","generation":1,"until":"2026-01-01T00:00:00Z","is_over":true}' % ID.encode(),
    ),
]


@pytest.mark.parametrize(("order", "key", "message_id", "body"), EXPECTED, ids=lambda it: type(it).__name__)
def test_key_message_id_and_body(order: AnyOrder, key: str, message_id: str, body: bytes) -> None:
    assert (order.key, order.message_id, order.encode()) == (key, message_id, body)
    assert type(order).decode(body) == order
    assert type(order).key_of("*") == f"{order.kind}.*"


@pytest.mark.parametrize("kind", [type(order) for order, *_ in EXPECTED])
@pytest.mark.parametrize("body", [b"\xff", b"", b"[" * 100_000, b"{}", b'{"job":"../etc","node":"../etc"}'])
def test_a_body_of_another_form_is_refused_with_the_cause(kind: type[AnyOrder], body: bytes) -> None:
    with pytest.raises(UnreadableOrder) as refused:
        kind.decode(body)
    assert isinstance(refused.value.__cause__, msgspec.MsgspecError | ValueError | RecursionError)
