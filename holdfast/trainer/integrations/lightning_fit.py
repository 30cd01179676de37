"""Steps of Lightning's `fit`: kept where a batch begins, restored as the checkpoint that Lightning resumes from.

Lightning keeps count of the batches of an epoch, but does not find its place in a loader again. So the loader's order
is drawn again from the random numbers that the epoch began with, and the iteration begins after the last batch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.trainer.integrations import shards
from holdfast.trainer.integrations.kept_steps import KeptSteps, Step, is_newer, rng_now, set_rng
from holdfast.trainer.integrations.loaders import begin_after, generator_states, set_generators

log = logging.getLogger("holdfast.trainer.checkpoint")

STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")
SHARDED = "ModelParallelStrategy"
"""Lightning's FSDP2 and tensor parallelism: the model is sharded in `configure_model`."""
INSTEAD = {"FSDPStrategy": "ModelParallelStrategy, which is FSDP2, is kept"}
META_FILE = "meta.pt"
"""The file without weights in a checkpoint that is a directory."""
PROGRESS = "epoch_loop.batch_progress"
NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


def fit_of(trainer: Any) -> LightningFit | None:
    """Return what keeps this training; None if nothing can."""
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        log.warning(
            "the steps of this fit are not kept in memory: HoldfastCallback is for data parallelism and FSDP2, and its "
            "strategy is %s. %s",
            strategy,
            INSTEAD.get(strategy, "`holdfast run --memory-checkpoints` keeps the checkpoints that it saves"),
        )
        return None
    return LightningFit(trainer)


class LightningFit:
    """One call of `Trainer.fit`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._is_sharded = type(trainer.strategy).__name__ == SHARDED
        self._steps = KeptSteps(is_sharded=self._is_sharded)
        self._epoch: dict[str, Any] = {"rng": rng_now(), "generators": []}
        self._restored: Step | None = None
        self._has_begun = False
        self._wrap(trainer._checkpoint_connector, "resume_start", self._resume)
        self._wrap(trainer.fit_loop, "_load_combined_loader_states", self._place_loaders)
        self._wrap(trainer.fit_loop.epoch_loop, "on_run_start", self._begin_run)

    def begin_epoch(self) -> None:
        # The first epoch's iteration has begun with its loaders.
        if self._trainer.current_epoch > 0:
            self._note_epoch()

    def begin_batch(self) -> None:
        """Keep the step that is complete, if it was not kept yet; validation after it is done."""
        if self._restored is not None:
            if self._restored.own is not None:
                set_rng(self._restored.own["rng"])
            self._restored = None
            return
        trainer = self._trainer
        if not self._steps.is_new(trainer.global_step):
            return
        with self._local_state():
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        model = checkpoint.pop("state_dict")
        # The batch that begins is not made.
        progress = checkpoint["loops"]["fit_loop"][PROGRESS]
        progress["is_last_batch"] = False
        for counts in (progress["total"], progress["current"]):
            counts.update(dict.fromkeys(("ready", "started", "processed"), counts["completed"]))
        own = {"rng": rng_now(), "epoch": self._epoch}
        self._steps.keep(Step(trainer.global_step, {"model": model}, checkpoint, own))

    @contextlib.contextmanager
    def _local_state(self) -> Iterator[None]:
        """Have a sharded strategy show what this rank holds. It would copy that, or gather the whole."""
        if not self._is_sharded:
            yield
            return
        strategy = self._trainer.strategy
        own = {
            "lightning_module_state_dict": self._trainer.lightning_module.state_dict,
            "optimizer_state": lambda optimizer: optimizer.state_dict(),
        }
        strategy.__dict__.update(own)
        try:
            yield
        finally:
            for name in own:
                del strategy.__dict__[name]

    def _wrap(self, owner: Any, name: str, instead: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: instead(original, *args, **kwargs))

    def _resume(self, original: Any, checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
        """Give Lightning what it would have loaded from a file."""
        if self._has_begun:
            # The same trainer validates or tests with another file.
            original(checkpoint_path, *args, **kwargs)
            return
        self._has_begun = True
        in_file = _step_of(checkpoint_path, kwargs.get("weights_only"))
        step = self._steps.restore(in_file=in_file)
        if step is None or not is_newer(step, in_file):
            original(checkpoint_path, *args, **kwargs)
            return
        self._restored = step
        connector = self._trainer._checkpoint_connector
        connector._ckpt_path = None
        connector._loaded_checkpoint = {**step.rest, "state_dict": step.models["model"]}
        if self._is_sharded:
            self._load_shards(step)

    def _load_shards(self, step: Step) -> None:
        """Load what a sharded strategy would have loaded with the file: the rest of it does not."""
        module = self._trainer.lightning_module
        shards.load_model(module, step.models["model"])
        saved = shards.placed_as([module], step.rest["optimizer_states"])
        for optimizer, state in zip(self._trainer.optimizers, saved, strict=True):
            optimizer.load_state_dict(state)

    def _place_loaders(self, original: Any) -> None:
        """Called when the loaders are made and not iterated over yet."""
        original()
        step, loop = self._restored, self._trainer.fit_loop
        if step is None or not loop.restarting:
            self._note_epoch()
            return
        if step.own is not None:
            self._epoch = step.own["epoch"]
            set_rng(self._epoch["rng"])
        loaders = self._loaders()
        for loader, states in zip(loaders, self._epoch["generators"], strict=False):
            set_generators(loader, states)
        batches = loop.epoch_loop.batch_progress.current.completed
        if any(callable(getattr(loader, "load_state_dict", None)) for loader in loaders):
            return  # Lightning restores these by itself
        warnings.filterwarnings("ignore", NOT_RESUMABLE)
        if len(loaders) == 1 and isinstance(loaders[0], torch.utils.data.DataLoader):
            begin_after(loaders[0], batches)
        elif batches:
            log.warning("the data begins at the start of the epoch: there are several loaders, or one of another kind")

    def _begin_run(self, original: Any, *args: Any) -> None:
        """Called before the first batch: the counts are set, and nothing of the step before is left to do."""
        original(*args)
        if self._restored is not None:
            self._trainer.fit_loop.restarting = False

    def _note_epoch(self) -> None:
        self._epoch = {"rng": rng_now(), "generators": [generator_states(loader) for loader in self._loaders()]}

    def _loaders(self) -> list[Any]:
        combined = self._trainer.fit_loop._combined_loader
        return list(combined.flattened) if combined is not None else []


def _step_of(path: Any, weights_only: bool | None) -> int | None:
    """Return the step of a checkpoint in a file, as far as it shows without reading the weights; None: not known."""
    if path and os.path.isdir(path):
        path = os.path.join(path, META_FILE)
    if not path or not os.path.isfile(path):
        return None
    try:
        # With the rights that Lightning loads it with.
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=bool(weights_only))
        return int(saved["global_step"])
    except (RuntimeError, OSError, ValueError, KeyError, TypeError, ImportError, pickle.UnpicklingError) as error:
        log.info("the step of %s is not known: %s", path, error)
        return None
