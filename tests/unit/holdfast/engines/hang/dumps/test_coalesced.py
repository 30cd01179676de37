"""Operations that are issued together, as the flight recorder has them."""

from __future__ import annotations

import json
from typing import Any

from holdfast.engines.hang.dumps.flight_recorder import read_flight_recorder
from holdfast.events.parts.traces import RankTrace
from tests.unit.holdfast.engines.hang.dumps.test_flight_recorder import dump, entry, status

RING = {"35": {"name": "35", "desc": "CONTEXT_PARALLEL_GROUP", "ranks": "[0, 1, 2, 3]"}}


def read(*entries: dict[str, Any], **fields: Any) -> RankTrace:
    (found,) = read_flight_recorder(json.dumps(dump(*entries, **fields)).encode(), "rank_0")
    return found


def message(name: str, sequence: int, **fields: Any) -> dict[str, Any]:
    return entry(profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=sequence, collective_seq_id=0, **fields)


def states(trace: RankTrace) -> list[tuple[str, int, str]]:
    return [(record.operation, record.sequence, record.state) for record in trace.records]


def test_parts_of_a_collective_are_one_operation() -> None:
    part = {"profiling_name": "nccl:_all_gather_base", "collective_seq_id": 8, "op_id": 30}
    end = {"profiling_name": "nccl:coalesced", "collective_seq_id": 8, "op_id": 31, "input_sizes": []}
    end |= {"duration_ms": 2.5}
    trace = read(entry(state="completed"), entry(**part), entry(**part | {"input_sizes": [[5]]}), entry(**end))
    assert states(trace) == [("all_reduce", 7, "completed"), ("_all_gather_base", 8, "scheduled")]
    assert (trace.records[1].input_sizes, trace.records[1].took_ns) == (((2, 3), (5,)), 2_500_000)
    # What counts each part by itself does not make the group's counter one of messages.
    assert (trace.entered, trace.completed) == ({"35": 8}, {"35": 7})


def test_shares_of_several_sizes_are_gathered_by_broadcasts_which_are_one_operation() -> None:
    parts = [entry(profiling_name="nccl:_broadcast_oop") for _ in range(4)]
    trace = read(*parts, entry(profiling_name="nccl:ALLGATHER_coalesced", state="completed"))
    assert states(trace) == [("all_gather", 7, "completed")]
    assert states(read(*parts, entry(profiling_name="nccl:coalesced"))) == [("coalesced", 7, "scheduled")]


def test_a_dump_of_active_operations_keeps_the_parts_of_what_has_ended() -> None:
    old = [message(name, sequence) for sequence in (3, 4) for name in ("send 0->1", "recv 0<-3")]
    last = [message("send 0->1", 5), message("recv 0<-3", 5), message("coalesced", 5)]
    trace = read(*old, *last, pg_config=RING, pg_status={"5": status(5, 4)})
    assert states(trace) == [
        *((name, sequence, "completed") for sequence in (3, 4) for name in ("send", "recv")),
        ("send", 5, "scheduled"),
        ("recv", 5, "scheduled"),
    ]


def test_a_batch_of_one_message_is_told_by_the_counter_and_a_message_of_its_own_is_not_lost() -> None:
    batches = [message("send 0->1", 8), message("send 0->1", 9), entry(collective_seq_id=1, p2p_seq_id=9)]
    trace = read(*batches, pg_config=RING, pg_status={"5": status(9, 9)})
    assert [record.state for record in trace.records] == ["completed", "completed", "scheduled"]
    # The last message that has ended is not there, as it ought to be: these were issued by themselves.
    alone = [message("send 0->1", 8), message("send 0->1", 10), entry(collective_seq_id=1, p2p_seq_id=10)]
    trace = read(*alone, pg_config=RING, pg_status={"5": status(10, 9)})
    assert [record.state for record in trace.records] == ["scheduled", "scheduled", "scheduled"]


def test_where_a_rank_stands_inside_a_batch_its_parts_are_pending() -> None:
    trace = read(message("send 0->1", 5), message("recv 0<-3", 5), pg_config=RING, pg_status={"5": status(4, 4)})
    assert [record.state for record in trace.records] == ["scheduled", "scheduled"]
