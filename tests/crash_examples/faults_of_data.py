# ruff: noqa: SIM115 - what is left open here is part of the fault
"""Ways to break a training by its data and its checkpoints, in a DataLoader's worker or not."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from faults_of_machine import eio
from faulty_model import Batches, Network
from torch.utils.data import DataLoader

HERE = Path(os.environ.get("JOB_DIR", "."))


def load(fault: Callable[[], Any], **options: Any) -> None:
    for _ in DataLoader(Batches(fault), batch_size=2, num_workers=2, **options):
        pass


def worker_index() -> None:
    load(lambda: [1, 2][7])


def worker_key() -> None:
    load(lambda: {"text": 1}["tokens"])


def worker_decode() -> None:
    load(lambda: json.loads("{'a': 1"))


def worker_missing_file() -> None:
    load(lambda: open(HERE / "shard-00007.bin", "rb"))


def worker_exits() -> None:
    load(lambda: os._exit(1))


def worker_killed() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def worker_segfault() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def worker_bus_error() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGBUS))


def worker_hangs() -> None:
    load(lambda: time.sleep(60), timeout=2)


def worker_eio() -> None:
    load(eio)


def worker_out_of_shared_memory() -> None:
    class Large(Batches):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(4 << 20)

    for _ in DataLoader(Large(), batch_size=4, num_workers=2):
        pass


def _checkpoint() -> Path:
    path = HERE / "step-2.pt"
    torch.save({"weight": torch.ones(1 << 16)}, path)
    return path


def truncated_checkpoint() -> None:
    path = _checkpoint()
    os.truncate(path, 100_000)
    torch.load(path)


def empty_checkpoint() -> None:
    path = HERE / "empty.pt"
    path.touch()
    torch.load(path)


def garbage_checkpoint() -> None:
    path = HERE / "garbage.pt"
    path.write_bytes(b"<html>not found</html>")
    torch.load(path, weights_only=False)


def truncated_pickle() -> None:
    path = HERE / "state.pkl"
    path.write_bytes(pickle.dumps(list(range(1000)))[:200])
    with open(path, "rb") as file:
        pickle.load(file)


def truncated_safetensors() -> None:
    from safetensors.torch import load_file, save_file

    path = HERE / "model.safetensors"
    save_file({"weight": torch.ones(64)}, path)
    os.truncate(path, 40)
    load_file(path)


def weights_only() -> None:
    path = HERE / "pickled.pt"
    torch.save({"when": HERE}, path)
    torch.load(path)


def other_shapes() -> None:
    Network(8).load_state_dict(Network(16).state_dict())


def other_keys() -> None:
    Network().load_state_dict({"embedding.weight": torch.ones(3)})


def other_optimizer() -> None:
    state = torch.optim.Adam([{"params": [torch.ones(1)]}, {"params": [torch.ones(2)]}]).state_dict()
    torch.optim.Adam(Network().parameters()).load_state_dict(state)


def missing_file() -> None:
    torch.load(HERE / "checkpoints" / "step-100.pt")
