"""Numbers and names that no honest process sends are refused where a message is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import events
from holdfast.events.parts.scalars import INTEGER_MAX
from holdfast.fresh_ids import uuid7
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast_agent.watching.ledgers import LedgerBook

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = {
    "address": "10.0.0.1",
    "hostname": "h",
    "boot_id": "b",
    "store_ports": [29500],
    "cpus": 1,
    "memory_bytes": 1,
    "version": "1",
}
REGISTERED = {"type": "node_registered", "node": "n", "instance": uuid7(), "facts": FACTS}
RESTORABLE = {"type": "step_restorable", "job": "j", "step": 1, "path": "/p", "checkpoint_bytes": 1}
PROGRESS = {"type": "progress", "job": "j", "node": "n", "ranks": [{"rank": 0, "step": 1, "phase": "forward"}]}


def decode(fields: dict[str, Any], **changes: Any) -> events.AnyEvent:
    common = {"id": uuid7(), "at": NOW, "source": "test"}
    return events.decode(msgspec.json.encode(common | fields | changes))


@pytest.mark.parametrize("fields", [REGISTERED, RESTORABLE, PROGRESS])
def test_what_honest_processes_send_is_read(fields: dict[str, Any]) -> None:
    decode(fields)


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        (RESTORABLE, {"step": 10**17}),
        (RESTORABLE, {"step": -2}),
        (RESTORABLE, {"checkpoint_bytes": -1}),
        (RESTORABLE, {"generation": INTEGER_MAX + 1}),
        (PROGRESS, {"ranks": [{"rank": 0, "step": 10**17, "phase": "forward"}]}),
        (PROGRESS, {"ranks": [{"rank": -1, "step": 1, "phase": "forward"}]}),
        (REGISTERED, {"instance": "zzzz"}),
        (REGISTERED, {"facts": FACTS | {"store_ports": []}}),
        (REGISTERED, {"facts": FACTS | {"store_ports": [0]}}),
        (REGISTERED, {"facts": FACTS | {"store_ports": [65536]}}),
    ],
)
def test_what_none_of_them_sends_is_refused(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(events.UnreadableEvent):
        decode(fields, **changes)


@pytest.mark.parametrize("field", ["epoch", "generation"])
@pytest.mark.parametrize("value", [-1, INTEGER_MAX + 1, 1 << 64])
def test_an_order_beyond_any_fence_is_refused(field: str, value: int) -> None:
    order = {"node": "n", "epoch": 1, "generation": 1}
    assert NodeOrder.decode(msgspec.json.encode(order)).fence == (1, 1)
    with pytest.raises(UnreadableOrder):
        NodeOrder.decode(msgspec.json.encode(order | {field: value}))


@pytest.mark.parametrize(("said", "reported"), [(1 << 60, INTEGER_MAX), (-7, -1), (12, 12)])
def test_a_script_that_counts_strangely_is_reported_within_the_limits(tmp_path: Path, said: int, reported: int) -> None:
    path = tmp_path / "rank-0.ledger"
    writer = LedgerWriter(path, rank=0, generation=1)
    book = LedgerBook({0: path})
    writer.complete_step(said)
    assert book.statuses()[0].step == reported
    samples, _ = book.new_samples()
    assert [sample.step for sample in samples] == [reported]
    book.close()
    writer.close()
