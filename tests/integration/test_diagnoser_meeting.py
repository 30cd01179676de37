"""The meeting of a run of checks, where somebody does not come."""

from __future__ import annotations

import time

from torch._C._distributed_c10d import TCPStore

from holdfast.engines.checks.suites import MEETING, Stage
from holdfast_checks.meeting import run
from holdfast_checks.result import StageTask, WorkerContext

LIMIT_S = 2.0


def test_who_came_is_said_before_whoever_waits_is_killed() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = WorkerContext(run="r/1", node="a", node_rank=0, nodes=2, store_host="127.0.0.1", store_port=store.port)
    began = time.monotonic()
    stage = Stage(test=MEETING, limit_s=LIMIT_S, pairs=((0, 1),))
    (found,) = run(StageTask(context=context, stage=stage), lambda: None)
    assert time.monotonic() - began < LIMIT_S
    assert (found.status, tuple(found.peers)) == ("passed", ("a", ""))
