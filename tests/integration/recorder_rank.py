"""A rank that serves its flight recorder, makes two collectives, and then holds the interpreter's lock for ever."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.trainer.hooks import flight_recorder


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
    flight_recorder.serve(sys.argv[1])
    flight_recorder.serve(sys.argv[1])
    for size in (4, 8):
        dist.all_reduce(torch.ones(size))
    Path(sys.argv[2]).touch()
    sys.stderr.write("what the script says\n")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    ctypes.PyDLL(None).sleep(600)


if __name__ == "__main__":
    main()
