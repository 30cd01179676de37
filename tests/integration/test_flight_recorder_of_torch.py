"""The library's own dumps, as this version of it writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.engines.hang.dumps.flight_recorder import read_flight_recorder
from tests.warm_python import run_warm

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2, 3))
dist.broadcast(torch.ones(5), 0)
open(sys.argv[1] + "/trace_rank_0", "wb").write(_dump_fr_trace(True, True, False))
json = _dump_fr_trace_json(True, False)
open(sys.argv[1] + "/trace_rank_0.json", "wb").write(json if isinstance(json, bytes) else json.encode())
"""


def test_both_forms_of_a_real_dump(tmp_path: Path) -> None:
    run_warm([sys.executable, "-c", SCRIPT, tmp_path], timeout=60)
    from_pickle, from_json = (
        read_flight_recorder((tmp_path / name).read_bytes(), name)[0] for name in ("trace_rank_0", "trace_rank_0.json")
    )
    for trace in (from_pickle, from_json):
        assert trace.rank == 0
        assert [(record.operation, record.sequence) for record in trace.records] == [
            ("all_reduce", 1),
            ("all_reduce", 2),
            ("all_reduce", 3),
            ("broadcast", 4),
        ]
        assert trace.records[0].input_sizes == ((2, 3),)
        assert {group.description for group in trace.groups if group.name == "0"} == {"default_pg"}
        assert trace.entered["0"] == 4
    assert any(frame.function == "all_reduce" for frame in from_pickle.records[0].frames)
