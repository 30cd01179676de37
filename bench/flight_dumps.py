"""Traces written as PyTorch's Flight Recorder writes them."""

from __future__ import annotations

from typing import Any

from holdfast.events.parts.traces import CollectiveRecord, RankTrace


def dump_of(trace: RankTrace, members: dict[str, str] | None = None) -> dict[str, Any]:
    """The dump of one rank, as the library makes it. `members`: the texts of large groups, made once."""
    numbers = {group.name: index for index, group in enumerate(trace.groups)}
    ranks = {group.name: group.ranks for group in trace.groups}
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": group.description,
                "ranks": (members or {}).get(group.name) or str(list(group.ranks)),
            }
            for group in trace.groups
        },
        "pg_status": {
            str(numbers[name]): {
                "last_enqueued_collective": entered,
                "last_started_collective": -1,
                "last_completed_collective": trace.completed.get(name, -1),
            }
            for name, entered in trace.entered.items()
        },
        "entries": [
            _entry(record, index, trace.rank, numbers, ranks, trace) for index, record in enumerate(trace.records)
        ],
    }


def _entry(
    record: CollectiveRecord,
    index: int,
    rank: int,
    numbers: dict[str, int],
    ranks: dict[str, tuple[int, ...]],
    trace: RankTrace,
) -> dict[str, Any]:
    members = ranks[record.group]
    name = record.operation
    if record.is_p2p and record.peer is not None:
        arrow = "->" if name == "send" else "<-"
        name = f"{name} {members.index(rank)}{arrow}{members.index(record.peer)}"
    description = next(group.description for group in trace.groups if group.name == record.group)
    return {
        "record_id": index,
        "pg_id": numbers[record.group],
        "process_group": (record.group, description),
        "thread_name": "python3",
        "thread_id": "23456244340032",
        "collective_seq_id": 0 if record.is_p2p else record.sequence,
        "p2p_seq_id": record.sequence if record.is_p2p else 0,
        "op_id": record.sequence,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": record.created_ns,
        "input_sizes": [list(sizes) for sizes in record.input_sizes],
        "input_dtypes": [record.dtype],
        "output_sizes": [list(sizes) for sizes in record.output_sizes],
        "output_dtypes": [record.dtype],
        "state": record.state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": record.created_ns + 1 if record.state == "completed" else None,
        "retired": record.state == "completed",
        "timeout_ms": 600000,
        "is_p2p": record.is_p2p,
        "frames": [],
    }
