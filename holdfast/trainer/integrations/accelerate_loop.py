"""A loop with accelerate: `keep`, and where the loop begins."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from holdfast.trainer.integrations.one_training import begins

log = logging.getLogger("holdfast.trainer.checkpoint")

NOT_KEPT = ("DEEPSPEED", "MEGATRON_LM", "XLA")


@dataclass
class LoopSteps:
    """A loop: `step` is the number of steps that its optimizer has completed, `epoch` the epoch to begin with.

    `is_restored`: a kept step was restored, not what the script has loaded itself.
    """

    step: int = 0
    epoch: int = 0
    is_restored: bool = False


def keep(accelerator: Any, loader: Any) -> LoopSteps:
    """Keep every step of the loop over this loader in memory, and restore the newest one if the job comes back.

    Called after `accelerator.prepare`, `register_for_checkpointing` and `load_state`, on all ranks::

        steps = keep(accelerator, loader)
        for epoch in range(steps.epoch, epochs):
            for batch in loader:  # begins after the last batch that was trained on

    Without Holdfast, and with nothing to restore, `epoch` and `step` are 0.
    """
    if not hasattr(accelerator, "_optimizers") or not hasattr(loader, "base_dataloader"):
        raise TypeError(
            "keep(accelerator, loader) takes an Accelerator of accelerate (pip install accelerate) and a loader that "
            f"its `prepare` returned, not {type(accelerator).__name__} and {type(loader).__name__}"
        )
    if not accelerator._optimizers:
        raise ValueError("keep(accelerator, loader) comes after accelerator.prepare(model, optimizer, loader)")
    if not begins("a loop of accelerate"):
        return LoopSteps()
    if reason := _why_not(accelerator):
        log.warning("the steps of this loop are not kept in memory: %s", reason)
        return LoopSteps()
    from holdfast.trainer.integrations.accelerate_steps import AccelerateSteps

    return AccelerateSteps(accelerator, loader)


def _why_not(accelerator: Any) -> str:
    from holdfast.trainer.integrations import shards

    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in NOT_KEPT:
        return f"`keep` is for data parallelism, FSDP2 and tensor parallelism, and it has {kind}"
    if any(shards.is_fsdp1(model) for model in accelerator._models):
        return f"{shards.FSDP1_REASON}: FullyShardedDataParallelPlugin(fsdp_version=2)"
    return ""
