# type: ignore
"""A small GPT, as in minGPT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class GPTConfig:
    n_layer: int = 1
    n_head: int = 2
    n_embd: int = 32
    vocab_size: int = 128
    block_size: int = 16


@dataclass
class OptimizerConfig:
    learning_rate: float = 3e-4
    weight_decay: float = 0.1


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Parameter(torch.zeros(1, config.block_size, config.n_embd))
        layer = nn.TransformerEncoderLayer(config.n_embd, config.n_head, 4 * config.n_embd, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, config.n_layer, enable_nested_tensor=False)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        length = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits = self.head(self.blocks(self.tokens(idx) + self.positions[:, :length], mask, is_causal=True))
        return logits, nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def create_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
