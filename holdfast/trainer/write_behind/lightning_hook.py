"""Lightning's saves into the vault: it writes through a buffer and fsspec, so `torch.save` sees no path."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from holdfast.trainer.write_behind.torch_hook import TorchSaves

MODULES = (
    "lightning.fabric.utilities.cloud_io",
    "lightning_fabric.utilities.cloud_io",
    # They take the function by its name.
    "lightning.fabric.plugins.io.torch_io",
    "lightning_fabric.plugins.io.torch_io",
)


def patch(saves: TorchSaves, module: ModuleType) -> None:
    """Hook the function that writes a checkpoint; a file on this machine is kept in memory, any other one is written as
    usual."""
    original = module._atomic_save
    if getattr(original, "is_of_holdfast", False):
        return

    @functools.wraps(original)
    def atomic_save(checkpoint: Any, filepath: Any) -> None:
        path = os.fspath(filepath)
        if "://" in path or not saves.keep(checkpoint, path, is_named=False):
            original(checkpoint, filepath)

    atomic_save.is_of_holdfast = True  # type: ignore[attr-defined]
    module._atomic_save = atomic_save  # type: ignore[attr-defined]
