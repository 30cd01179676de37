"""One pipeline stage of a byte-level GPT."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from parallel import ColumnParallelLinear, Dim, Mesh, RowParallelLinear
from torch import nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    tokens: int
    seed: int

    def check(self, mesh: Mesh) -> None:
        """Raises ValueError when the model cannot be cut as the mesh asks."""
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} is not a multiple of --heads {self.heads}")
        if self.heads % mesh.tp.size:
            raise ValueError(f"--heads {self.heads} cannot be shared by tp={mesh.tp.size}")
        if self.layers < mesh.pp.size:
            raise ValueError(f"--layers {self.layers} is fewer than the pp={mesh.pp.size} stages")


class Attention(nn.Module):
    def __init__(self, config: Config, tp: Dim) -> None:
        super().__init__()
        self._head_width = config.width // config.heads
        self.qkv = ColumnParallelLinear(config.width, 3 * config.width, tp)
        self.out = RowParallelLinear(config.width, config.width, tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, -1, self._head_width).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    def __init__(self, config: Config, tp: Dim) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config, tp)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.expand = ColumnParallelLinear(config.width, 4 * config.width, tp)
        self.contract = RowParallelLinear(4 * config.width, config.width, tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.contract(functional.gelu(self.expand(self.norm_mlp(x))))


class Stage(nn.Module):
    """The layers of one pipeline rank: the first also embeds, the last also predicts."""

    def __init__(self, config: Config, mesh: Mesh) -> None:
        super().__init__()
        config.check(mesh)
        self.is_first = mesh.pp.rank == 0
        self.is_last = mesh.pp.rank == mesh.pp.size - 1
        if self.is_first:
            self.embedding = nn.Embedding(VOCABULARY, config.width)
            self.position = nn.Parameter(torch.empty(config.tokens, config.width))
        # Keyed by the layer's number in the whole model: a parameter has the same name on every mesh.
        self.blocks = nn.ModuleDict({str(layer): Block(config, mesh.tp) for layer in _layers_of(config, mesh.pp)})
        if self.is_last:
            self.norm = nn.LayerNorm(config.width)
            self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        with torch.no_grad():
            _initialise(self, config, mesh.tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bytes ``[batch, tokens]`` on the first stage, else activations; logits on the last, else activations."""
        if self.is_first:
            x = self.embedding(x) + self.position
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.is_last else x


def _layers_of(config: Config, pp: Dim) -> range:
    return range(config.layers * pp.rank // pp.size, config.layers * (pp.rank + 1) // pp.size)


def _initialise(stage: Stage, config: Config, tp: Dim) -> None:
    """Every parameter draws from a generator of its own, whole, and keeps its shard: the mesh changes no weight."""
    for name, parameter in stage.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            continue
        generator = torch.Generator().manual_seed(config.seed ^ zlib.crc32(name.encode()))
        is_residual = "out.weight" in name or "contract.weight" in name
        std = 0.02 / math.sqrt(2 * config.layers) if is_residual else 0.02
        if "qkv" in name:
            whole = torch.randn(3, config.width, config.width, generator=generator)
            shard = whole.chunk(tp.size, dim=1)[tp.rank]
        elif "expand" in name:
            shard = torch.randn(4 * config.width, config.width, generator=generator).chunk(tp.size, dim=0)[tp.rank]
        elif is_residual:
            rows = parameter.shape[1] * tp.size
            shard = torch.randn(config.width, rows, generator=generator).chunk(tp.size, dim=1)[tp.rank]
        else:
            shard = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(shard.reshape(parameter.shape) * std)
