"""What is trained, and on what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset


class Batches(Dataset[torch.Tensor]):
    """`fault` runs where item 3 is read."""

    def __init__(self, fault: Callable[[], Any] | None = None, items: int = 8) -> None:
        self.fault = fault
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3 and self.fault:
            self.fault()
        return torch.ones(4)


class Network(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(batch))).mean()
