"""Nodes of a run of checks, forked from one warm parent: `diagnoser_nodes.py OUTPUT`, with cases as JSON on stdin.

Each case: {"name", "suite", "nodes", "limit_s", "fault": {"kind", "node"}}. The faults are real ones: the arithmetic of
a node's processes is wrong, what it sends is not what it has, its processes are stopped or die.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from holdfast.node import kernel
from holdfast_agent.zygote import preload

HOST = "127.0.0.1"


def wrong_product() -> None:
    """Every matrix product has one flipped bit in one element."""
    import torch

    def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype)
        torch.ops.aten.mm.out(left, right, out=found)
        found.view(torch.int16).view(-1)[101] ^= 1 << 9
        return found

    _replace("mm", mm)


def wrong_batched_product() -> None:
    """Products of batches are off by the smallest amount, and alike each time: nothing but other nodes can tell."""
    import torch

    def bmm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found = torch.empty(left.shape[0], left.shape[1], right.shape[2], dtype=left.dtype)
        torch.ops.aten.bmm.out(left, right, out=found)
        found.view(torch.int32).view(-1)[0] ^= 1
        return found

    _replace("bmm", bmm)


def _replace(name: str, function: Callable[..., Any]) -> None:
    import torch

    library = torch.library.Library("aten", "IMPL")
    library.impl(name, function, "CPU")
    _kept.append(library)


_kept: list[Any] = []


def damaged_sending() -> None:
    """One bit of what this node sends to others is flipped on the way."""
    import torch
    import torch.distributed as dist

    gather = dist.all_gather_single

    def damaged(output: torch.Tensor, sent: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if len(output) == 4 * len(sent):
            sent = sent.clone()
            sent.view(torch.int32)[17] ^= 1 << 3
        return gather(output, sent, *rest, **named)

    dist.all_gather_single = damaged


def stopped_at_the_first_meeting() -> None:
    """All of this node's processes stop when it has met its first partner."""
    import torch.distributed as dist

    gather = dist.all_gather_single

    def stopped(*given: Any, **named: Any) -> Any:
        os.kill(int(os.environ["DRIVER"]), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        return gather(*given, **named)

    dist.all_gather_single = stopped


def crashes() -> None:
    """The memory test of this node dies of an invalid access."""
    import torch

    def crash(*given: Any, **named: Any) -> NoReturn:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError

    torch.count_nonzero = crash


FAULTS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (wrong_product, wrong_batched_product, damaged_sending, stopped_at_the_first_meeting, crashes)
}


def run(case: dict[str, Any], output: Path) -> None:
    """All nodes of a case; what is left stopped when the others are over is killed."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    began = time.monotonic()
    nodes = {_fork(case, number, store.port, output): number for number in range(case["nodes"])}
    while nodes:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        nodes.pop(pid, None)
        if all(map(kernel.is_stopped, nodes)):
            for left in nodes:
                os.kill(left, signal.SIGKILL)
        time.sleep(0.01)
    print(json.dumps({"case": case["name"], "took_s": time.monotonic() - began}), flush=True)


def _fork(case: dict[str, Any], number: int, port: int, output: Path) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            kernel.die_with_parent(parent)
            _node(case, number, port, output / case["name"])
        finally:
            os._exit(0)
    return pid


def _node(case: dict[str, Any], number: int, port: int, output: Path) -> None:
    from holdfast_checks.driver import Driver
    from holdfast_checks.result import WorkerContext

    os.environ["DRIVER"] = str(os.getpid())
    fault = case.get("fault", {})
    if fault and fault["node"] == number:
        FAULTS[fault["kind"]]()
    output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, (output / f"{number}.jsonl").open("w", buffering=1) as results:

        def tell(result: Any) -> None:
            found = result.result
            line = {name: getattr(found, name) for name in found.__struct_fields__}
            results.write(json.dumps(line | {"test": result.stage.test, "round": result.stage.round}) + "\n")

        context = WorkerContext(
            run=case["name"],
            node=f"n{number}",
            node_rank=number,
            nodes=case["nodes"],
            workers=2,
            store_host=HOST,
            store_port=port,
            job_directory=str(output / "job"),
            node_directory=str(output / f"node-{number}"),
            scratch=scratch,
            burn_s=0.02,
        )
        Driver(context, case["suite"], case["limit_s"], tell).run()


if __name__ == "__main__":
    preload.hold_threads()
    preload.preload()
    gc.collect()
    gc.freeze()
    for asked in json.loads(sys.stdin.read()):
        run(asked, Path(sys.argv[1]))
