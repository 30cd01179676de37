"""Every step of a framework's training in memory, and back after a failure, by one line (docs/integrations.md)::

    from holdfast.trainer.integrations import HoldfastCallback

    Trainer(..., callbacks=[HoldfastCallback()])  # of transformers, or of Lightning

    from holdfast.trainer.integrations import keep

    steps = keep(accelerator, loader)  # accelerate, after `prepare`

Importing this imports no framework. Outside of `holdfast run` both do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.trainer.integrations.accelerate_loop import keep
    from holdfast.trainer.integrations.callback import HoldfastCallback

__all__ = ["HoldfastCallback", "keep"]

_MODULES = {"HoldfastCallback": "callback", "keep": "accelerate_loop"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
