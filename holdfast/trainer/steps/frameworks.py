"""Hooks on the step counters of frameworks, put in place while a framework is imported.

Each counts completed steps of its optimizers, also over restarts, and whatever a script's gradients are accumulated
over. The first to train counts for the job: what it trains with inside is not asked.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.trainer.hooks.holding import wait_if_held
from holdfast.trainer.phases import binding
from holdfast.trainer.steps.counted_optimizer import CountedOptimizer
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.notes import COUNTS_BEGIN_AGAIN, is_marked, mark
from holdfast.trainer.steps.step_start import generation


def patch_transformers(module: ModuleType) -> None:
    """Hook what calls the callbacks of the Trainer of Hugging Face, and of those built on it."""
    handler = module.CallbackHandler
    handler.on_train_begin = _before(
        handler.on_train_begin, lambda _, args, state, *more, **named: note_begin("transformers", state.global_step)
    )
    handler.on_step_end = _before(
        handler.on_step_end, lambda _, args, state, *more, **named: note_step("transformers", state.global_step)
    )


def patch_lightning(module: ModuleType) -> None:
    """Hook what calls Lightning's callbacks."""
    package = module.__name__.partition(".")[0]

    def called(trainer: Any, hook: str, *_: Any, **__: Any) -> None:
        if hook == "on_train_batch_end":
            note_step(package, trainer.global_step)
        elif hook == "on_train_start":
            note_begin(package, trainer.global_step)

    module._call_callback_hooks = _before(module._call_callback_hooks, called)  # type: ignore[attr-defined]


def patch_deepspeed(module: ModuleType) -> None:
    """Hook the engine's step. A script may have several engines, such as an actor and a critic: one of them counts."""
    engines = CountedOptimizer()

    def stepped(engine: Any, *_: Any, **__: Any) -> None:
        taken = engines.take(engine, (time.time_ns(), time.monotonic_ns()))
        if taken.has_changed:
            note_begin("deepspeed", engine.global_steps - 1)
        if taken.moments:
            note_step("deepspeed", engine.global_steps)

    module.DeepSpeedEngine.step = _after(module.DeepSpeedEngine.step, stepped)


def patch_torchtitan(module: ModuleType) -> None:
    """Hook the trainer's step; it has counted a step when it begins."""
    trainer = module.Trainer
    trainer.train_step = _after(trainer.train_step, lambda self, *_, **__: note_step("torchtitan", self.step))


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.trainer_callback": patch_transformers,
    "lightning.pytorch.trainer.call": patch_lightning,
    "pytorch_lightning.trainer.call": patch_lightning,
    "deepspeed.runtime.engine": patch_deepspeed,
    "torchtitan.trainer": patch_torchtitan,
    "torchtitan.train": patch_torchtitan,
}


def _before(original: Callable[..., Any], hook: Callable[..., None]) -> Callable[..., Any]:
    safe = harmless(hook)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        safe(*args, **kwargs)
        return original(*args, **kwargs)

    return call


def _after(original: Callable[..., Any], hook: Callable[..., None]) -> Callable[..., Any]:
    safe = harmless(hook)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        safe(*args, **kwargs)
        return result

    return call


def note_begin(framework: str, done: int) -> None:
    """Note that a framework begins to train, with `done` steps completed.

    If it has trained before in this process and begins again at a lower number, the job's steps go on all the same. A
    later generation does not know which of its trainings it does again.
    """
    ledger = binding.ledger
    if ledger is None or binding.explicit or binding.framework not in ("", framework):
        return
    done, name, is_known = int(done), _versioned(framework), True
    if ledger.steps_done:
        if done + binding.trained_before < ledger.step:
            binding.trained_before = ledger.step - done
            mark(COUNTS_BEGIN_AGAIN)
    elif generation() > 1 and is_marked(COUNTS_BEGIN_AGAIN):
        name, is_known = f"{framework} trains more than once", False
    binding.begin_counting(framework, done, name, is_known=is_known)


def note_step(framework: str, done: int) -> None:
    """Note that `done` steps are completed now; a framework that accumulates gradients may report a number twice."""
    ledger = binding.ledger
    if ledger is None or binding.explicit or binding.framework not in ("", framework):
        return
    if not binding.framework:
        binding.begin_counting(framework, int(done) - 1, _versioned(framework))
    number = int(done) + binding.trained_before
    if number != ledger.step:
        ledger.complete_step(number)
        wait_if_held()


def _versioned(framework: str) -> str:
    version = getattr(sys.modules.get(framework), "__version__", "")
    return f"{framework} {version}".strip()
