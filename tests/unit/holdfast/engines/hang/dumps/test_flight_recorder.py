"""Dumps of the flight recorder in every shape that they come in."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast.engines.hang.dumps.flight_recorder import FlightRecorderError, read_flight_recorder


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "record_id": 1,
        "pg_id": 5,
        "process_group": ("35", "TENSOR_MODEL_PARALLEL_GROUP"),
        "collective_seq_id": 7,
        "p2p_seq_id": 0,
        "op_id": 7,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[2, 3]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
    } | fields


def dump(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "version": "2.9",
        "pg_config": {"35": {"name": "35", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"5": status(7, 6)},
        "entries": list(entries),
    } | fields


def status(entered: int, completed: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": entered,
        "last_started_collective": -1,
        "last_completed_collective": completed,
    }


def test_pickle_json_and_gzip_say_the_same() -> None:
    value = dump(entry(frames=[{"name": "train", "filename": "train.py", "line": 12}]))
    files = (pickle.dumps(value, 2), json.dumps(value).encode(), gzip.compress(json.dumps(value).encode()))
    found = [read_flight_recorder(data, "nccl_trace_rank_3") for data in files]
    assert found[0] == found[1] == found[2]
    (trace,) = found[0]
    (record,) = trace.records
    assert (trace.rank, record.operation, record.sequence, record.dtype) == (3, "all_reduce", 7, "BFloat16")
    assert record.input_sizes == ((2, 3),)
    assert record.frames[0].function == "train"
    assert trace.groups[0].ranks == (0, 1, 2, 3)
    assert (trace.entered, trace.completed) == ({"35": 7}, {"35": 6})


@pytest.mark.parametrize("wrap", [lambda dumps: dumps, lambda dumps: {"scenario": "x", "dumps": dumps}])
def test_several_ranks_in_one_file(wrap: Any) -> None:
    value = wrap({"2": dump(entry()), "rank_10": dump(entry())})
    assert [trace.rank for trace in read_flight_recorder(json.dumps(value).encode())] == [2, 10]
    assert [trace.rank for trace in read_flight_recorder(pickle.dumps(value))] == [2, 10]


def test_a_list_of_dumps_that_name_their_ranks() -> None:
    value = [dump(rank=4), dump(rank=1)]
    assert [trace.rank for trace in read_flight_recorder(json.dumps(value).encode())] == [1, 4]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_12", 12),
        ("_dump_9", 9),
        ("host3-rank7.json.gz", 7),
        ("trace.4.pickle", 4),
        (r"C:\dumps\rank-2.json", 2),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int) -> None:
    (trace,) = read_flight_recorder(json.dumps(dump()).encode(), name)
    assert trace.rank == rank


def test_the_rank_is_where_its_groups_meet() -> None:
    groups = {"1": {"name": "1", "desc": "a", "ranks": "[4, 5]"}, "2": {"name": "2", "desc": "b", "ranks": [1, 5]}}
    (trace,) = read_flight_recorder(json.dumps(dump(pg_config=groups)).encode(), "dump_from_pid_3333")
    assert trace.rank == 5


def test_no_rank_anywhere_is_an_error_with_its_cure() -> None:
    with pytest.raises(FlightRecorderError, match="does not state its rank; name the file after it"):
        read_flight_recorder(json.dumps(dump()).encode(), "dump")


def test_versions_that_write_texts_for_numbers() -> None:
    value = dump(
        entry(time_discovered_completed_ns=0), version="2.10", pg_status={"5": {"last_enqueued_collective": "7"}}
    )
    (trace,) = read_flight_recorder(json.dumps(value).encode(), "rank_0")
    assert trace.entered == {"35": 7}
    assert trace.records[0].state == "scheduled"


def test_the_oldest_versions_have_seq_id_and_no_groups() -> None:
    old = {"version": "2.0", "entries": [{"seq_id": 3, "pg_id": 0, "profiling_name": "nccl:all_gather"}]}
    (trace,) = read_flight_recorder(pickle.dumps(old), "rank_0")
    assert trace.records[0].sequence == 3
    assert trace.groups[0].name == "0"


def test_gloo_retires_what_it_never_completes() -> None:
    (trace,) = read_flight_recorder(
        json.dumps(dump(entry(retired=True), entry(collective_seq_id=8, op_id=8))).encode(), "rank_0"
    )
    assert [record.state for record in trace.records] == ["completed", "scheduled"]


def test_point_to_point_peers_are_global_ranks() -> None:
    groups = {"42": {"name": "42", "desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": "[1, 9]"}}
    send = entry(
        process_group=("42", "PIPELINE_MODEL_PARALLEL_GROUP"),
        profiling_name="nccl:send 0->1",
        is_p2p=True,
        p2p_seq_id=99,
        collective_seq_id=29,
    )
    (trace,) = read_flight_recorder(json.dumps(dump(send, pg_config=groups)).encode(), "rank_1")
    (record,) = trace.records
    assert (record.operation, record.peer, record.sequence, record.is_p2p) == ("send", 9, 99, True)
    # The counter of pg_status is that of messages here; the records' one counts collectives.
    assert trace.entered == {"42": 29}


def test_operations_inside_a_coalesced_one_share_its_state() -> None:
    inside = [entry(profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=4) for name in ("send 0->1", "recv 0<-1")]
    end = entry(profiling_name="nccl:coalesced", is_p2p=True, p2p_seq_id=4, state="completed", input_sizes=[])
    (trace,) = read_flight_recorder(json.dumps(dump(*inside, end)).encode(), "rank_0")
    assert [(record.operation, record.state) for record in trace.records] == [
        ("send", "completed"),
        ("recv", "completed"),
    ]


def test_a_rank_without_records_is_placed_by_the_order_of_its_groups() -> None:
    groups = {str(name): {"name": str(name), "desc": "", "ranks": [0, 1]} for name in (100, 9, 35)}
    value = dump(pg_config=groups, pg_status={"11": status(3, 3), "2": status(2, 1), "0": status(1, 1)})
    (trace,) = read_flight_recorder(json.dumps(value).encode(), "rank_0")
    assert trace.entered == {"9": 1, "35": 2, "100": 3}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "cannot be read"),
        (b'{"entries": [{"profiling_name": 3}]}', r"entries\[0\].profiling_name"),
        (b'{"entries": [], "pg_config": {"0": {"ranks": "a, b"}}}', "cannot be read"),
        (b'{"tony": {}}', "'tony' is no rank"),
        (b"\x1f\x8bnothing", "damaged gzip"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps(os.getcwd), "could run code"),
        (b"[" * 100_000, "cannot be read"),
        (b"Thread 0x1234 (idle)", "cannot be read"),
    ],
)
def test_what_is_no_dump_says_why(data: bytes, says: str) -> None:
    with pytest.raises(FlightRecorderError, match=says):
        read_flight_recorder(data, "rank_0")


@pytest.mark.skipif("HOLDFAST_FIELD_DATA" not in os.environ, reason="HOLDFAST_FIELD_DATA names no folder")
def test_dumps_from_the_field() -> None:
    for file in Path(os.environ["HOLDFAST_FIELD_DATA"], "flight_recorder").glob("*.json"):
        traces = read_flight_recorder(file.read_bytes(), file.name)
        assert [trace.rank for trace in traces] == list(range(16))
        assert all(len(trace.entered) == 13 for trace in traces)
