"""What a rank's environment says of its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.trainer.checkpoint_errors import CheckpointError
from holdfast.trainer.checkpoint_workplace import Owner
from holdfast.vault_wire import ShardName


def owner() -> Owner:
    """Who writes: under Holdfast a generation of a job, else what torchrun counts."""
    generation = os.environ.get("HOLDFAST_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    submitted_ms = os.environ.get("HOLDFAST_JOB_SUBMITTED_MS") or "0"
    return Owner(os.environ.get("HOLDFAST_JOB", ""), int(submitted_ms), int(generation))


def default_directory() -> Path:
    """The job's own, else one here."""
    job_directory = os.environ.get("HOLDFAST_JOB_DIR")
    return Path(job_directory, "checkpoints") if job_directory else Path("checkpoints")


def restore_step() -> int | None:
    """The step after which nothing may be restored; None if all may."""
    value = os.environ.get("HOLDFAST_RESTORE_STEP", "")
    if not value:
        return None
    if not value.isdigit():
        raise CheckpointError(f"HOLDFAST_RESTORE_STEP={value!r} is no step: set it to a number from 0, or unset it")
    return int(value)


def shard_name(owner: Owner, rank: int, world_size: int) -> ShardName | None:
    """Whose shard this rank's is in the memory of its node; None outside of Holdfast."""
    if not owner.job:
        return None
    return ShardName(job=owner.job, submitted_ms=owner.submitted_ms, world_size=world_size, rank=rank)
