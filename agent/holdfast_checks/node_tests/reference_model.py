"""Reference model of the alignment test: a small transformer, dense or with experts, in any parallel form.

Weights and inputs are computed from their indices, so that every machine begins with equal bits. Tensor parallelism
(with experts: expert parallelism) splits heads, hidden units and experts; pipeline parallelism splits layers.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from holdfast_checks import numbers

TOP = 2
"""Experts per token."""
_SEEDS_PER_LAYER = 16


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the whole model. `experts` 0: dense."""

    width: int
    heads: int
    layers: int
    tokens: int
    batch: int
    vocabulary: int
    experts: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A process's part of the model: index and size in each dimension, and its tensor-parallel group."""

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    dp: int = 0
    dp_size: int = 1
    tp_group: Any = None


class Model(nn.Module):
    """One process's part of the model."""

    def __init__(self, sizes: Sizes, part: Part, device: torch.device, kind: torch.dtype) -> None:
        super().__init__()
        self.part = part
        per_stage = sizes.layers // part.pp_size
        layers = range(part.pp * per_stage, (part.pp + 1) * per_stage)
        self.blocks = nn.ModuleList(Block(sizes, part, layer) for layer in layers)
        self.head: nn.Parameter | None = None
        if part.pp == part.pp_size - 1:
            self.head = nn.Parameter(numbers.uniform(7, (sizes.width, sizes.vocabulary), sizes.width**-0.5))
        self.to(device, kind)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [batch, tokens, width] to the same, in the last stage to [batch, tokens, vocabulary]."""
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else _normal(hidden) @ self.head


class Block(nn.Module):
    """Attention, then a feed-forward layer or experts."""

    def __init__(self, sizes: Sizes, part: Part, layer: int) -> None:
        super().__init__()
        self.part = part
        self.head_width = sizes.width // sizes.heads
        seed, width = 1000 + _SEEDS_PER_LAYER * layer, sizes.width
        self.qkv = nn.Parameter(_cut(_weight(seed, (3, width, width)), 2, part))
        self.out = nn.Parameter(_cut(_weight(seed + 1, (width, width)), 0, part))
        self.gate: nn.Parameter | None = None
        experts = max(1, sizes.experts)
        up, down = _weight(seed + 2, (experts, width, 4 * width)), _weight(seed + 3, (experts, 4 * width, width))
        if sizes.experts:
            self.gate = nn.Parameter(_weight(seed + 4, (width, experts)))
            self.up, self.down = nn.Parameter(_cut(up, 0, part)), nn.Parameter(_cut(down, 0, part))
        else:
            self.up, self.down = nn.Parameter(_cut(up, 2, part)), nn.Parameter(_cut(down, 1, part))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [batch, tokens, width] to the same."""
        hidden = hidden + self._sum(self._attention(self._spread(_normal(hidden))))
        return hidden + self._sum(self._feed_forward(_normal(hidden)))

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = hidden.shape
        query, key, value = (
            (hidden @ weight).view(batch, tokens, -1, self.head_width).transpose(1, 2) for weight in self.qkv
        )
        scores = query @ key.transpose(2, 3) * self.head_width**-0.5
        ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).triu(1)
        attended = scores.masked_fill(ahead, float("-inf")).softmax(-1) @ value
        mixed: torch.Tensor = attended.transpose(1, 2).reshape(batch, tokens, -1) @ self.out
        return mixed

    def _feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        spread = self._spread(hidden)
        if self.gate is None:
            whole: torch.Tensor = functional.gelu(spread @ self.up[0]) @ self.down[0]
            return whole
        chances = (hidden @ self.gate).softmax(-1)
        chosen = torch.zeros_like(chances).scatter(-1, chances.topk(TOP).indices, 1.0)
        # Every expert sees all tokens: routing must not decide the order of sums.
        shares = self._spread(chances * chosen)
        first = self.part.tp * len(self.up)
        mixed = torch.zeros_like(hidden)
        for expert, (up, down) in enumerate(zip(self.up, self.down, strict=True), start=first):
            mixed = mixed + shares[..., expert : expert + 1] * (functional.gelu(spread @ up) @ down)
        return mixed

    def _sum(self, partial: torch.Tensor) -> torch.Tensor:
        if self.part.tp_size == 1:
            return partial
        summed: torch.Tensor = _Sum.apply(partial, self.part.tp_group)  # type: ignore[no-untyped-call]
        return summed

    def _spread(self, whole: torch.Tensor) -> torch.Tensor:
        if self.part.tp_size == 1:
            return whole
        spread: torch.Tensor = _Spread.apply(whole, self.part.tp_group)  # type: ignore[no-untyped-call]
        return spread


class _Sum(torch.autograd.Function):
    """Sum over the tensor ranks; the gradient is passed through."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Any) -> torch.Tensor:
        whole = partial.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class _Spread(torch.autograd.Function):
    """Identity on all tensor ranks; the gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def batch(sizes: Sizes, dp: int, device: torch.device, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input [batch, tokens, width] and labels [batch, tokens] of one data-parallel replica."""
    hidden = numbers.uniform(11 + 2 * dp, (sizes.batch, sizes.tokens, sizes.width))
    words = numbers.integers(12 + 2 * dp, (sizes.batch, sizes.tokens), sizes.vocabulary - 1).abs()
    return hidden.to(device, kind), words.long().to(device)


def _weight(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return numbers.uniform(seed, shape, shape[-2] ** -0.5)


def _cut(whole: torch.Tensor, dimension: int, part: Part) -> torch.Tensor:
    return whole.chunk(part.tp_size, dimension)[part.tp].contiguous()


def _normal(hidden: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:])
