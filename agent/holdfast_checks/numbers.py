"""Numbers that are equal on every machine, each computed from its index alone (Philox, counter-based)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import xxhash


def bits(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return `count` random words."""
    return np.random.Philox(key=seed).random_raw(count)


def integers(seed: int, shape: tuple[int, ...], largest: int) -> torch.Tensor:
    """Return whole numbers from -largest to largest, as float32 [shape]."""
    words = bits(seed, int(np.prod(shape)))
    whole = (words % np.uint64(2 * largest + 1)).astype(np.int64) - largest
    return torch.from_numpy(whole.astype(np.float32)).reshape(shape)


def uniform(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    """Return numbers between -scale and scale, float32 [shape], without rounding that may differ between machines."""
    words = bits(seed, int(np.prod(shape)))
    fractions = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return torch.from_numpy(fractions * np.float32(scale)).reshape(shape)


def digest(*tensors: torch.Tensor) -> str:
    """Return one digest of the tensors' bytes, in this order."""
    whole = xxhash.xxh3_128()
    for tensor in tensors:
        whole.update(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
