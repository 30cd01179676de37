"""What a process costs until it can compute: seconds and device memory for each stage. Also the process itself.

A process that is forked inherits no context, so what is saved by one that stands ready is what is measured here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STAGES = ("imports", "context", "matrix product")


def contexts(device: Any) -> list[dict[str, Any]]:
    """Measure one process: each stage's seconds, and by how much less memory of the device is free after it."""
    from device import GB

    from holdfast.trainer.device.adapters import free_bytes

    rows: list[dict[str, Any]] = []
    command = [sys.executable, __file__, device.type]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        free = free_bytes(device)
        for stage in STAGES:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the process ended before {stage}")
            now = free_bytes(device)
            used = (free - now) / GB if free is not None and now is not None else None
            rows.append({"stage": stage, "s": json.loads(line), "device_gb_in_all": used})
            print(file=process.stdin, flush=True)
    return rows


def _stages(kind: str) -> None:
    began = time.perf_counter()
    import torch

    if kind == "sim":
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests import accelerator

        accelerator.load()
    began = _done(began)
    tensor = torch.zeros(1, device=kind)
    torch.accelerator.synchronize()
    began = _done(began)
    tensor.expand(16, 16) @ tensor.expand(16, 16)
    torch.accelerator.synchronize()
    _done(began)


def _done(began: float) -> float:
    """Report a stage, and go on when the parent has seen what it costs."""
    print(time.perf_counter() - began, flush=True)
    sys.stdin.readline()
    return time.perf_counter()


if __name__ == "__main__":
    _stages(sys.argv[1])
