"""Steps of Hugging Face's Trainer: kept where a step begins, restored through the Trainer's own way to resume.

The Trainer finds its place in the data from the number in `trainer_state.json`, and reads random numbers once it is
there. It is given a directory with these two; what it looks for besides, and does not find, it leaves as it is.
Weights, optimizer, schedule and scale come from memory when training begins.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import pickle
import tempfile
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from holdfast.trainer.integrations import shards
from holdfast.trainer.integrations.callback import HoldfastCallback
from holdfast.trainer.integrations.kept_steps import KeptSteps, Step, is_newer, rng_now, set_rng
from holdfast.trainer.integrations.one_training import begins

log = logging.getLogger("holdfast.trainer.checkpoint")

STATE_FILE = "trainer_state.json"
SINCE_LOGGED = ("_globalstep_last_logged", "current_flos")
"""Attributes of a Trainer that belong to the steps since it last logged, besides the loss."""


def patch_trainer(module: ModuleType) -> None:
    """Hook where a Trainer's training begins."""
    trainer = module.Trainer
    trainer.train = _kept(trainer.train)
    trainer._inner_training_loop = _resumed(trainer._inner_training_loop)
    trainer._load_from_checkpoint = _loaded(trainer._load_from_checkpoint)


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        callback = _callback_of(self)
        if callback is None or not _can_be_kept(self) or not begins("a Trainer's training"):
            return original(self, resume_from_checkpoint, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="holdfast-resume-") as folder:
            callback.training = TransformersTrain(self, folder)
            is_restored = callback.training.restore(resume_from_checkpoint)
            try:
                return original(self, None if is_restored else resume_from_checkpoint, *args, **kwargs)
            finally:
                callback.training = None

    return train


def _resumed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loop(
        self: Any,
        batch_size: Any = None,
        args: Any = None,
        resume_from_checkpoint: Any = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        callback = _callback_of(self)
        if callback is not None and callback.training is not None and callback.training.folder:
            resume_from_checkpoint = callback.training.folder
        return original(self, batch_size, args, resume_from_checkpoint, *more, **named)

    return loop


def _loaded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(self: Any, resume_from_checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
        callback = _callback_of(self)
        if callback is None or callback.training is None or resume_from_checkpoint != callback.training.folder:
            return original(self, resume_from_checkpoint, *args, **kwargs)
        # With FSDP it would miss the model's files.
        return None

    return load


def _callback_of(trainer: Any) -> HoldfastCallback | None:
    return next((it for it in trainer.callback_handler.callbacks if isinstance(it, HoldfastCallback)), None)


def _can_be_kept(trainer: Any) -> bool:
    reason = ""
    if _has_fsdp(trainer) and not _has_fsdp2(trainer):
        reason = f'{shards.FSDP1_REASON}: "fsdp_version": 2 in `fsdp_config`'
    for name in ("is_deepspeed_enabled", "is_fsdp_xla_enabled"):
        if getattr(trainer, name, False):
            reason = f"HoldfastCallback is for data parallelism and FSDP2, and it has {name}"
    if reason:
        log.warning(
            "this Trainer's steps are not kept in memory: %s. `holdfast run --memory-checkpoints` keeps the "
            "checkpoints that it saves",
            reason,
        )
    return not reason


def _has_fsdp(trainer: Any) -> bool:
    return bool(getattr(trainer, "is_fsdp_enabled", False))


def _has_fsdp2(trainer: Any) -> bool:
    return _has_fsdp(trainer) and getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1) == 2


class TransformersTrain:
    """One call of `Trainer.train`. `folder` is what it resumes from; "" if nothing is restored."""

    def __init__(self, trainer: Any, folder: str) -> None:
        self.folder = ""
        self._trainer = trainer
        self._place = folder
        # Of a Trainer with FSDP2 the model is not sharded yet.
        self._is_sharded = _has_fsdp2(trainer) or shards.is_sharded(trainer.model)
        self._steps = KeptSteps(is_sharded=self._is_sharded)
        self._log = _History()
        self._restored: Step | None = None

    def restore(self, resume_from_checkpoint: Any) -> bool:
        """Return True if training goes on from a kept step, and not from the file that the script names."""
        in_file = self._step_of(resume_from_checkpoint)
        step = self._steps.restore(in_file=in_file)
        if step is None or not is_newer(step, in_file):
            return False
        self._restored = step
        self.folder = self._place
        state = pickle.loads(step.rest["state"])
        state.log_history = self._log.read(step.rest["log"])
        state.save_to_json(os.path.join(self.folder, STATE_FILE))
        if step.own is not None:
            before = rng_now()
            set_rng(step.own["rng"])
            self._trainer._save_rng_state(self.folder)
            set_rng(before)
        return True

    def begin(self) -> None:
        """Load what the Trainer has made by now; afterwards it trains."""
        step, self._restored = self._restored, None
        if step is None:
            return
        trainer, optimizer = self._trainer, step.rest["optimizer"]
        if self._is_sharded:
            shards.load_model(trainer.model, step.models["model"])
            optimizer = shards.placed_as([trainer.model], optimizer)
        else:
            trainer.model.load_state_dict(step.models["model"])
        trainer.optimizer.load_state_dict(optimizer)
        trainer.lr_scheduler.load_state_dict(step.rest["scheduler"])
        if (scaler := trainer.accelerator.scaler) is not None and step.rest["scaler"] is not None:
            scaler.load_state_dict(step.rest["scaler"])
        for name, value in (step.own or {}).get("since_logged", {}).items():
            setattr(trainer, name, value)
        if hasattr(trainer, "_tr_loss"):
            loss = (step.own or {}).get("loss", 0.0)
            trainer._tr_loss += loss
            # The loss of steps before is logged with the next ones; the mean at the end is that of this call's steps.
            trainer._total_loss_scalar -= float(loss)

    def keep(self) -> None:
        """Keep the step that is complete, if it was not kept yet: what follows a step (logs, evaluation) is done."""
        trainer = self._trainer
        if not self._steps.is_new(trainer.state.global_step):
            return
        scaler = trainer.accelerator.scaler
        rest = {
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "state": pickle.dumps(self._state()),
            "log": self._log.written(trainer.state.log_history),
        }
        own: dict[str, Any] = {
            "rng": rng_now(),
            "since_logged": {name: getattr(trainer, name) for name in SINCE_LOGGED if hasattr(trainer, name)},
        }
        if (loss := getattr(trainer, "_tr_loss", None)) is not None:
            own["loss"] = loss.item() if loss.device.type == "cpu" else loss.clone()
        self._steps.keep(Step(trainer.state.global_step, {"model": trainer.model.state_dict()}, rest, own))

    def _state(self) -> Any:
        """Return the Trainer's state as it would be saved, without what it has logged."""
        trainer = self._trainer
        exportable = import_module(type(trainer.state).__module__).ExportableState
        state = copy.copy(trainer.state)
        state.log_history = []
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        state.stateful_callbacks = [it for it in callbacks if isinstance(it, exportable)]
        state.__post_init__()
        return state

    def _step_of(self, resume_from_checkpoint: Any) -> int | None:
        """Return the step of the checkpoint that the script names; None if it names none."""
        if resume_from_checkpoint is True:
            output = self._trainer.args.output_dir
            last = import_module("transformers.trainer_utils").get_last_checkpoint
            resume_from_checkpoint = last(output) if os.path.isdir(output) else None
        if not resume_from_checkpoint:
            return None
        path = os.path.join(resume_from_checkpoint, STATE_FILE)
        return int(type(self._trainer.state).load_from_json(path).global_step) if os.path.isfile(path) else None


class _History:
    """Entries of the training's log, as bytes. The log grows with the training, so each entry is pickled once."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def written(self, entries: list[Any]) -> bytes:
        if len(entries) < len(self._entries):
            self._entries.clear()
        self._entries += [pickle.dumps(entry) for entry in entries[len(self._entries) :]]
        return pickle.dumps(self._entries)

    def read(self, written: bytes) -> list[Any]:
        self._entries = list(pickle.loads(written))
        return [pickle.loads(entry) for entry in self._entries]
