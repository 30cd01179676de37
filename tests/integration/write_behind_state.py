"""The checkpoint that test_write_behind.py and its ranks save: shared storages, views, empty tensors, large objects."""

from __future__ import annotations

from typing import Any

import torch


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(512, 1024, generator=generator)
    return {
        "model": {"w": weights, "tied": weights, "part": weights[3:5], "b": torch.randn(7, generator=generator)},
        "step": seed,
        "empty": torch.empty(0),
        "half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "args": {"lr": 1e-3, "names": ["a", "ü"], "large": b"x" * 100_000},
    }
