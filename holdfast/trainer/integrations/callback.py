"""The callback of Hugging Face's Trainer and of Lightning: one object that either of them may call."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.trainer.integrations.one_training import begins, is_rank

if TYPE_CHECKING:
    from holdfast.trainer.integrations.lightning_fit import LightningFit
    from holdfast.trainer.integrations.transformers_train import TransformersTrain

FRAMEWORKS = ("transformers", "lightning", "pytorch_lightning")


class HoldfastCallback:
    """Keeps every step of a `Trainer` in memory, and restores the newest one when the job comes back.

    It answers to the callbacks of both frameworks, and does nothing in those that it has no use for: neither framework
    is imported for it.
    """

    def __init__(self) -> None:
        if not any(importlib.util.find_spec(name) for name in FRAMEWORKS):
            raise ImportError(
                "HoldfastCallback is for the Trainer of transformers and that of Lightning, and this environment has "
                "neither. Install the one that the script uses: pip install transformers, or pip install lightning"
            )
        self.training: TransformersTrain | None = None
        self._fit: LightningFit | None = None
        if is_rank():
            from holdfast.trainer.hooks import install_hooks
            from holdfast.trainer.integrations.transformers_train import patch_trainer

            install_hooks.also("transformers.trainer", patch_trainer)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _nothing

    # Hugging Face's Trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self.training is not None:
            self.training.begin()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        if self.training is not None:
            self.training.keep()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self.training is not None:
            self.training.keep()

    # Lightning

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    _legacy_state_key = state_key

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        is_trial = getattr(trainer, "fast_dev_run", False)
        if stage != "fit" or is_trial or not begins("a fit of Lightning"):
            return
        from holdfast.trainer.integrations.lightning_fit import fit_of

        self._fit = fit_of(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._fit = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit is not None:
            self._fit.begin_epoch()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self._fit is not None:
            self._fit.begin_batch()


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in a callback of a framework."""
