"""Trainings whose losses must be the same on the CPU and on the simulated accelerator, to the last bit."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests import accelerator

WIDTH, HEADS, TOKENS, VOCABULARY, BATCH = 32, 2, 16, 64, 4

Optimizing = Literal["single", "foreach", "fused"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        # In so many words, for torch has other kernels of attention for the CPU than for a device.
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool, device=x.device), 1)
        attended = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, -1))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tie()

    def tie(self) -> None:
        """Share the weights again that `to` of a device makes two of."""
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt(device: str) -> Gpt:
    torch.manual_seed(7)
    model = Gpt().to(device)
    model.tie()
    return model


def optimizer_of(model: nn.Module, how: Optimizing) -> torch.optim.AdamW:
    foreach, fused = {"single": (False, False), "foreach": (True, False), "fused": (False, True)}[how]
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach, fused=fused)


def batches(device: str, steps: int, seed: int) -> list[torch.Tensor]:
    """Return the tokens of each step; those for a device by way of pinned memory, beside the host."""
    random = torch.Generator().manual_seed(seed)
    made = [torch.randint(VOCABULARY, (BATCH, TOKENS), generator=random) for _ in range(steps)]
    return [tokens if device == "cpu" else tokens.pin_memory().to(device, non_blocking=True) for tokens in made]


def losses_of(model: nn.Module, how: Optimizing, data: list[torch.Tensor]) -> list[float]:
    """Train; return the loss of each step, read after the last one."""
    optimizer = optimizer_of(model, how)
    losses = []
    for tokens in data:
        loss = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def alone(device: str, how: Optimizing, steps: int, delays_seed: int | None = None) -> tuple[list[float], set[str]]:
    """Return the losses of the GPT, and the operators that made the host wait before the first loss was read."""
    _delay(delays_seed)
    model, data = gpt(device), batches(device, steps, seed=1)
    accelerator.waited()
    return losses_of(model, how, data), accelerator.waited()


def of_rank(device: str, kind: Literal["ddp", "fsdp2"], steps: int, delays_seed: int | None = None) -> list[float]:
    """Return the losses of one rank of a process group; each has other data."""
    _delay(delays_seed)
    model: nn.Module = gpt(device)
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.05)  # type: ignore[arg-type]
    else:
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        assert isinstance(model, Gpt)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return losses_of(model, "foreach", batches(device, steps, seed=2 + dist.get_rank()))


def of_rank_with_early_futures(steps: int, delays_seed: int) -> list[float]:
    """Return DDP's losses on a device whose collectives' futures do not wait for the collectives."""
    accelerator.early_futures(True)
    return of_rank("sim", "ddp", steps, delays_seed)


def capturable(delays_seed: int | None = None) -> list[float]:
    """Return the losses with AdamW's form for graphs, which rounds otherwise than the one that the CPU has."""
    _delay(delays_seed)
    model = gpt("sim")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, foreach=True)
    losses = []
    for tokens in batches("sim", 3, seed=1):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def compiled(delays_seed: int) -> list[bool]:
    """Return whether gradients of a compiled model are those of the model."""
    _delay(delays_seed)
    model, (tokens,) = gpt("sim"), batches("sim", 1, seed=1)
    found = []
    for forward in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        forward(tokens).backward()
        found.append([parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None])
    return [torch.equal(a, b) for a, b in zip(*found, strict=True)]


def across_streams(delays_seed: int) -> bool:
    """Return whether a backward whose forward ran on two streams has the gradient."""
    _delay(delays_seed)
    x, side, training = torch.ones(100, device="sim"), torch.Stream("sim"), torch.accelerator.current_stream()
    x.requires_grad_()
    side.wait_stream(training)
    with side:
        y = (x * 3).sin()
    training.wait_stream(side)
    (y * 2).sum().backward()
    assert x.grad is not None
    return torch.equal(x.grad.cpu(), torch.ones(100).mul(3).cos() * 2 * 3)


def hashed(delays_seed: int) -> list[bool]:
    """Return whether hashes of tensors on the device are the CPU's."""
    _delay(delays_seed)
    tensors = [torch.rand(70, 50), torch.rand(3000).bfloat16(), torch.arange(9)]
    return [torch.hash_tensor(t.to("sim")).item() == torch.hash_tensor(t).item() for t in tensors]


def _delay(seed: int | None) -> None:
    if seed is not None:
        accelerator.seed(seed)
        accelerator.delay(longest_us=200, chance=0.5)
