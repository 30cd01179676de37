"""Numbers and names that no honest process sends are refused where a message is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

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


def bounds_missing(kind: inspect.Type, path: str, seen: set[type]) -> Iterator[str]:
    """Yield the integers and the measured seconds of an event that no limit bounds."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
            seen.add(cls)
            for field in fields:
                yield from bounds_missing(field.type, f"{cls.__name__}.{field.name}", seen)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            for inner in types:
                yield from bounds_missing(inner, path, seen)
        case inspect.VarTupleType(item_type=inner):
            yield from bounds_missing(inner, path, seen)
        case inspect.DictType(value_type=inner):
            yield from bounds_missing(inner, path, seen)
        case inspect.IntType(ge=least, le=most) if least is None or most is None:
            yield path
        case inspect.FloatType(ge=None, gt=None) if path in MEASURED:
            yield path


MEASURED = {
    *("StepSample.duration_s", "IterationSample.duration_s", "IterationSample.in_calls_s", "CopiesMeasured.took_s"),
    *("RankProgress.since_change_s", "RankProgress.since_step_s", "RankProfile.iterations_s", "ProfiledCalls.seconds"),
    *("SlownessTested.compute_s", "SlownessTested.transfers", "StepTimeMeasured.median_s", "StepTimeMeasured.p99_s"),
}
"""Durations that decisions follow from."""


def test_every_number_that_decisions_follow_from_has_bounds() -> None:
    seen: set[type] = set()
    kinds = events.EVENT_TYPES.values()
    assert not [path for kind in kinds for path in bounds_missing(inspect.type_info(kind), kind.__name__, seen)]
    assert {path.partition(".")[0] for path in MEASURED} <= {cls.__name__ for cls in seen}


SAMPLE = {"rank": 0, "step": 1, "ended_at": NOW, "duration_s": 1.0}
MEASURED_STEPS = {"type": "steps_measured", "job": "j", "node": "n", "world_size": 2, "samples": [SAMPLE]}


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"type": "step_time_measured", "job": "j", "median_s": 0.0, "p99_s": 1.0, "samples": 5}, {}),
        ({"type": "step_time_measured", "job": "j", "median_s": -1.0, "p99_s": 1.0, "samples": 5}, {}),
        (MEASURED_STEPS, {"samples": [SAMPLE | {"duration_s": -1.0}]}),
        (MEASURED_STEPS, {"samples": [SAMPLE | {"duration_s": 1e300}]}),
        (MEASURED_STEPS, {"samples": [SAMPLE | {"rank": 2}]}),
        (MEASURED_STEPS, {"samples": [SAMPLE | {"not_finite": {"loss": "x" * 1000}}]}),
        (MEASURED_STEPS, {"iterations": [[2, 1, 1.0]]}),
        (PROGRESS | {"world_size": 2}, {"ranks": [{"rank": 2, "step": 1, "phase": "forward"}]}),
        (PROGRESS, {"ranks": [{"rank": 0, "step": 1, "phase": "forward", "since_change_s": -5.0}]}),
    ],
)
def test_figures_that_no_node_measures_are_refused(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(events.UnreadableEvent):
        decode(fields, **changes)
