# type: ignore
"""torch.distributed.rpc: a trainer calls a parameter server, which applies gradients by a DistributedOptimizer."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed.rpc as rpc
from torch import nn

STEPS, EVERY = 160, 50


class Server:
    def __init__(self):
        torch.manual_seed(6)
        self.net = nn.Linear(16, 16)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.done = 0
        if os.path.exists("rpc.pt"):
            saved = torch.load("rpc.pt")
            self.net.load_state_dict(saved["net"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.done = saved["done"]

    def weights(self):
        return self.done, [p.detach() for p in self.net.parameters()]

    def apply(self, grads):
        for p, grad in zip(self.net.parameters(), grads, strict=True):
            p.grad = grad
        self.optimizer.step()
        self.done += 1
        norm = sum(float(grad.norm()) for grad in grads)
        with open("log.txt", "a") as file:
            file.write(f"{self.done} {norm!r}\n")
        if self.done % EVERY == 0:
            state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}
            torch.save(state, "rpc.tmp")
            os.replace("rpc.tmp", "rpc.pt")
        return self.done


SERVER = None


def get_weights():
    global SERVER
    SERVER = SERVER or Server()
    return SERVER.weights()


def apply(grads):
    return SERVER.apply(grads)


def train():
    net = nn.Linear(16, 16)
    done, weights = rpc.rpc_sync("server", get_weights)
    while done < STEPS:
        for p, value in zip(net.parameters(), weights, strict=True):
            p.data.copy_(value)
        time.sleep(0.02)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(done))
        net.zero_grad()
        nn.functional.mse_loss(net(x), x.roll(1, 1)).backward()
        done = rpc.rpc_sync("server", apply, args=([p.grad for p in net.parameters()],))
        weights = rpc.rpc_sync("server", get_weights)[1]


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=300)
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world, rpc_backend_options=options)
    if rank:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    main()
