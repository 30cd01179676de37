# type: ignore
"""Characters of a text that is made here, as no file can be fetched."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

SAMPLES = 256
READ_S = 0.003
"""What reading a sample takes from a slow disk."""


@dataclass
class DataConfig:
    block_size: int = 16
    truncate: float = 1.0


class CharDataset(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, config: DataConfig) -> None:
        words = b"the quick brown fox jumps over the lazy dog "
        self.data = torch.tensor([words[(i * i + i // 7) % len(words)] for i in range(SAMPLES + config.block_size + 1)])
        self.block_size = config.block_size

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(READ_S)
        chunk = self.data[index : index + self.block_size + 1]
        return chunk[:-1], chunk[1:]
