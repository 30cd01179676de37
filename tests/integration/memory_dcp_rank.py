"""What the ranks of test_memory_dcp.py run: memory_dcp_rank.py (train|resume).

The training of memory_dtensors_rank.py without a Checkpointer: the last of its steps is saved by `async_save`, and all
is spoiled as soon as that returns. Then it waits to be killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from memory_dtensors_rank import Training, build, initialise
from torch.distributed.checkpoint.api import CheckpointException

from holdfast import trainer
from holdfast.trainer.checkpoint import RngState

STEPS = 5


def refuses_another_cut(reader: Any) -> bool:
    otherwise = Training(build("fsdp"))
    before = otherwise.digest()
    try:
        dcp.load({"training": otherwise}, storage_reader=reader)
    except CheckpointException as error:
        return "has another part of 'training." in str(error) and otherwise.digest() == before
    return False


def main(what: str) -> None:
    training = Training(build("tp"))
    state = {"training": training, "rng": RngState(), "rank": dist.get_rank()}
    reader = trainer.storage_reader()
    if what == "resume":
        assert refuses_another_cut(reader)
        dcp.load(state, storage_reader=reader)
        assert state["rank"] == dist.get_rank()
        print("restored", reader.step, training.digest(), flush=True)
        return
    assert reader.step == 0
    for step in range(1, STEPS + 1):
        training.step()
        print(step, training.digest(), flush=True)
        writer = trainer.storage_writer(step=step)
        if step < STEPS:
            dcp.save(state, storage_writer=writer)
        else:
            future = dcp.async_save(state, storage_writer=writer)
            spoil(training)
            future.result()
        assert writer.kept
    assert trainer.storage_reader().step == STEPS
    print("kept", flush=True)
    signal.pause()


def spoil(training: Training) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.fill_(777)
    torch.manual_seed(777)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    initialise()
    main(sys.argv[1])
    dist.barrier()
    # An interpreter that ends while gloo's threads do may call std::terminate; the work is done.
    os._exit(0)
