# type: ignore
"""Checkpoints by torch.distributed.checkpoint: step-N in a folder, the newest is loaded."""

from __future__ import annotations

import os
import re
from typing import Any

import torch.distributed.checkpoint as dcp

from ..tools import logger


class CheckpointManager:
    def __init__(self, states: dict[str, Any], folder: str, interval: int) -> None:
        self.states, self.folder, self.interval = states, folder, interval

    def load(self) -> bool:
        if not os.path.isdir(self.folder):
            return False
        steps = [int(found[1]) for name in os.listdir(self.folder) if (found := re.match(r"step-(\d+)", name))]
        steps = [step for step in steps if os.path.isfile(os.path.join(self.folder, f"step-{step}", ".metadata"))]
        if not steps:
            return False
        logger.info("Loading the checkpoint at step %d.", max(steps))
        dcp.load(self.states, checkpoint_id=os.path.join(self.folder, f"step-{max(steps)}"))
        return True

    def save(self, step: int) -> None:
        if step % self.interval == 0:
            logger.info("Saving the checkpoint (or staging if async is enabled).")
            dcp.save(self.states, checkpoint_id=os.path.join(self.folder, f"step-{step}"))
