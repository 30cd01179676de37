"""Settings of a rank's checkpoints from its environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from holdfast.node.vault.messages import ShardName
from holdfast.trainer.checkpoint.errors import CheckpointError
from holdfast.trainer.checkpoint.storage.workplace import Owner

SCRATCH_CURE = (
    "Submit the job with --allow-scratch to let it start afresh in such a case, or with -e HOLDFAST_RESTORE_STEP=0 to "
    "start afresh now"
)


class Scratch(Enum):
    """A job's permission to start from scratch."""

    UNLESS_WHOLE = ""
    """Unless the ranks find that there was a whole step."""
    REFUSED = "refuse"
    """The job has made checkpoints."""
    ALLOWED = "allow"
    """The owner of the job allows a start from scratch."""


def scratch() -> Scratch:
    value = os.environ.get("HOLDFAST_SCRATCH", "")
    return Scratch(value) if value in {each.value for each in Scratch} else Scratch.UNLESS_WHOLE


def owner() -> Owner:
    """Return the writer's identity: a generation of a job under Holdfast, else torchrun's restart count."""
    generation = os.environ.get("HOLDFAST_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    submitted_ms = os.environ.get("HOLDFAST_JOB_SUBMITTED_MS") or "0"
    return Owner(os.environ.get("HOLDFAST_JOB", ""), int(submitted_ms), int(generation))


def default_directory() -> Path:
    job_directory = os.environ.get("HOLDFAST_JOB_DIR")
    return Path(job_directory, "checkpoints") if job_directory else Path("checkpoints")


def restore_step() -> int | None:
    """Return the step after which nothing may be restored; None if all may."""
    value = os.environ.get("HOLDFAST_RESTORE_STEP", "")
    if not value:
        return None
    if not value.isdigit():
        raise CheckpointError(f"HOLDFAST_RESTORE_STEP={value!r} is no step: set it to a number from 0, or unset it")
    return int(value)


def shard_name(owner: Owner, rank: int, world_size: int) -> ShardName | None:
    """Return the name of this rank's shards in the memory of its node; None outside of Holdfast."""
    if not owner.job:
        return None
    return ShardName(job=owner.job, submitted_ms=owner.submitted_ms, world_size=world_size, rank=rank)


def mesh_sizes(mesh: DeviceMesh | Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of the job's mesh by dimension: the script's mesh, else the one from the job's start."""
    if isinstance(mesh, DeviceMesh):
        return dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    if mesh is not None:
        return dict(mesh)
    pairs = (pair.split("=") for pair in os.environ.get("HOLDFAST_MESH", "").split(",") if pair)
    return {name.strip(): int(size) for name, size in pairs}


def shape_words(world_size: int, mesh: Mapping[str, int]) -> str:
    dims = ",".join(f"{name}={size}" for name, size in mesh.items())
    return f"{world_size} ranks" + (f" as {dims}" if dims else "")
