"""Steps of a loop with accelerate: kept where its loader gives the next batch, restored before the loop begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from holdfast.trainer.integrations import shards
from holdfast.trainer.integrations.accelerate_loop import LoopSteps
from holdfast.trainer.integrations.kept_steps import KeptSteps, Step, is_newer, rng_now, set_rng
from holdfast.trainer.integrations.loaders import begin_after, generator_states, set_generators
from holdfast.trainer.steps import frameworks
from holdfast.trainer.steps.loads import LOADED_STATE
from holdfast.trainer.steps.step_start import count_of

KEEPER = "_holdfast_steps"
KINDS = ("optimizers", "schedulers", "custom_objects")


class AccelerateSteps(LoopSteps):
    """A loop whose steps are kept."""

    def __init__(self, accelerator: Any, loader: Any) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._loader = loader
        self._batches = 0
        self._order: dict[str, Any] = {}
        self._is_sharded = any(shards.is_sharded(model) for model in accelerator._models)
        self._steps = KeptSteps(is_sharded=self._is_sharded)
        in_file = _step_loaded(accelerator)
        step = self._steps.restore([_name(n) for n in range(len(accelerator._models))], in_file)
        self._restored = step if is_newer(step, in_file) else None
        self.is_restored = self._restored is not None
        if self._restored is not None:
            self._load(self._restored)
        elif in_file:
            self.step = in_file
        frameworks.note_begin("accelerate", self.step)
        accelerator._optimizers[0].optimizer.register_step_post_hook(self._stepped)
        _hook(type(loader))
        loader.__dict__[KEEPER] = self

    def _stepped(self, *_: Any) -> None:
        self.step += 1
        frameworks.note_step("accelerate", self.step)

    def _load(self, step: Step) -> None:
        accelerator, rest = self._accelerator, step.rest
        for n, model in enumerate(accelerator._models):
            unwrapped, kept = accelerator.unwrap_model(model), step.models[_name(n)]
            if self._is_sharded:
                shards.load_model(unwrapped, kept)
            else:
                unwrapped.load_state_dict(kept)
        for kind in KINDS:
            kept = shards.placed_as(accelerator._models, rest[kind]) if self._is_sharded else rest[kind]
            for it, saved in zip(getattr(accelerator, f"_{kind}"), kept, strict=True):
                it.load_state_dict(saved)
        if accelerator.scaler is not None and rest["scaler"] is not None:
            accelerator.scaler.load_state_dict(rest["scaler"])
        accelerator.step = rest["accumulated"]
        self.step, self.epoch = step.number, rest["epoch"]
        self._loader.set_epoch(self.epoch)
        self._loader.iteration = self.epoch

    def _keep(self) -> None:
        accelerator = self._accelerator
        if not self._steps.is_new(self.step):
            return
        models = {_name(n): accelerator.unwrap_model(model).state_dict() for n, model in enumerate(accelerator._models)}
        rest: dict[str, Any] = {kind: [it.state_dict() for it in getattr(accelerator, f"_{kind}")] for kind in KINDS}
        rest["scaler"] = accelerator.scaler.state_dict() if accelerator.scaler is not None else None
        rest |= {"accumulated": accelerator.step, "epoch": self._loader.iteration, "batches": self._batches}
        self._steps.keep(Step(self.step, models, rest, {"rng": rng_now(), "order": self._order}))

    def batches_of(self, iterate: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Yield an epoch's batches; between two of them the step before is complete."""
        step, self._restored = self._restored, None
        self._batches = 0
        if step is not None:
            self._batches = step.rest["batches"]
            if step.own is not None:
                set_rng(step.own["order"]["rng"])
                set_generators(self._loader, step.own["order"]["generators"])
            if hasattr(self._loader, "_fetch_batches"):
                # One process reads for all of them.
                self._loader.skip_batches = self._batches
            else:
                begin_after(self._loader.base_dataloader, self._batches)
        self._order = {"rng": rng_now(), "generators": generator_states(self._loader)}
        for batch in iterate(self._loader):
            if step is not None and step.own is not None:
                set_rng(step.own["rng"])
            if step is not None:
                self._loader.skip_batches = 0
            step = None
            self._keep()
            self._batches += 1
            yield batch


def _step_loaded(accelerator: Any) -> int | None:
    """Return the step that the script has loaded by `load_state`: 0 if that does not show it, None if it has not."""
    if not hasattr(accelerator, LOADED_STATE):
        return None
    counted = count_of(accelerator._optimizers[0])
    return int(counted or getattr(accelerator, LOADED_STATE) or 0)


def _name(number: int) -> str:
    return f"model_{number}" if number else "model"


def _hook(kind: type[Any]) -> None:
    """Have the loaders of this class ask those who keep their steps."""
    original = kind.__iter__
    if hasattr(original, KEEPER):
        return

    @wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        steps: AccelerateSteps | None = self.__dict__.get(KEEPER)
        return original(self) if steps is None else steps.batches_of(original)

    setattr(iterate, KEEPER, True)
    kind.__iter__ = iterate
