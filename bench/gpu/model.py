"""A GPT of any size, its optimizer and its state, as the benchmarks of this folder train it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

STATE_BYTES = 12
"""For each parameter: itself and two moments, in fp32."""


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """The number of them, without norms and biases."""
        return 12 * self.layers * self.width**2 + (self.vocabulary + self.tokens) * self.width

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES * self.parameters


LARGE = Shape(layers=24, width=2048, heads=16, tokens=1024, batch=8, vocabulary=50304)
"""1.3 billion parameters."""
TINY = Shape(layers=2, width=32, heads=2, tokens=16, batch=2, vocabulary=64)


def fitted(shape: Shape, state_bytes_max: int) -> Shape:
    """Return the shape with as many layers as fit, at least one."""
    while shape.layers > 1 and shape.state_bytes > state_bytes_max:
        shape = shape._replace(layers=shape.layers - 1)
    return shape


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.tokens, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.embedding.weight)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return all tensors that a restart needs."""
    moments = {str(index): dict(it) for index, it in enumerate(optimizer.state.values())}
    return {"model": dict(model.state_dict()), "moments": moments}
