"""What the ranks of test_memory_dtensors.py run: memory_dtensors_rank.py (train|resume).

A model whose parameters are DTensors trains until it is killed, is kept at every step, and saved on disk after the
second. When it is resumed, it is restored first as it was cut, then into a model that is cut otherwise.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.trainer.checkpoint import Checkpointer, PerRank, RngState
from holdfast.trainer.checkpoint.layout.dtensors import leaves, local_of


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Large enough that a rank's part is copied in place, and odd enough that the last part is a short one.
        self.widen = nn.Linear(1025, 1300)
        self.narrow = nn.Linear(1300, 1025, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.widen(x)))


def build(how: str) -> Model:
    torch.manual_seed(7)
    model = Model()
    if how == "tp":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"widen": ColwiseParallel(), "narrow": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",)))
    return model


class Training:
    """Model and optimizer as DCP's own functions give them: names for keys, moments made before they are loaded."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def step(self) -> None:
        # From the generator that is kept: a step that was lost or done twice shows in all that follow.
        loss = self.model(torch.randn(4, 1025)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def digest(self) -> str:
        """Of all that this rank has."""
        found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for path, value in leaves(self.state_dict()):
            found.update(repr(path).encode())
            tensor = local_of(value) if isinstance(value, DTensor) else value
            found.update(tensor.numpy().tobytes() if isinstance(tensor, torch.Tensor) else repr(tensor).encode())
        return found.hexdigest()

    def whole(self) -> float:
        """Of all ranks' parts, the same however they are cut."""
        return sum(parameter.full_tensor().double().sum().item() for parameter in self.model.parameters())


def initialise() -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def main(what: str) -> None:
    training = Training(build("tp"))
    state: dict[str, Any] = {"training": training, "rng": PerRank(RngState())}
    checkpointer = Checkpointer()
    done = checkpointer.restore(state)
    if what == "resume":
        print("restored", done, training.digest(), flush=True)
        otherwise = Training(build("fsdp"))
        print("resharded", checkpointer.restore({**state, "training": otherwise}), otherwise.whole(), flush=True)
        return
    for step in count(1):
        training.step()
        print(step, training.digest(), flush=True)
        assert checkpointer.keep(step, state)
        if step == 2:
            checkpointer.save(step, state)
            print("saved", step, training.whole(), flush=True)
        print("kept", step, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    initialise()
    main(sys.argv[1])
    dist.barrier()
    # An interpreter that ends while gloo's threads do may call std::terminate; the work is done.
    os._exit(0)
