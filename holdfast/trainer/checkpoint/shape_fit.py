"""Refuses a checkpoint that another number of ranks saved, if this job cannot load it."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.trainer.checkpoint import environment
from holdfast.trainer.checkpoint.errors import CheckpointMismatch
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest
from holdfast.trainer.checkpoint.layout.state_marks import GLOBAL, KeyedState
from holdfast.trainer.replay_run import job_world_size


def refuse_other_shape(manifest: CheckpointManifest, keyed: KeyedState, ranks: int, mesh: Mapping[str, int]) -> None:
    """Raise CheckpointMismatch if the checkpoint lacks state that only this rank or its shard has."""
    held = {space for part in manifest.parts for space in part.holds}
    per_rank = any(space.startswith("rank/") for space in keyed.spaces)
    missing = keyed.spaces - held - {GLOBAL}
    if not missing and not (per_rank and manifest.world_size != job_world_size(ranks)):
        return
    raise CheckpointMismatch(
        f"the checkpoint of step {manifest.step} was saved {shape_of(manifest)}; this job runs with "
        f"{environment.shape_words(ranks, mesh)} and needs {', '.join(sorted(missing)) or 'as many ranks'}. "
        "State marked PerRank or PerShard cannot be resharded: restart with the mesh of then, keep it in DTensors "
        "(they reshard), or name another checkpoint directory to start afresh"
    )


def shape_of(manifest: CheckpointManifest) -> str:
    """Return with how many ranks, and which mesh, a checkpoint was saved."""
    return f"with {environment.shape_words(manifest.world_size, manifest.mesh)}"
