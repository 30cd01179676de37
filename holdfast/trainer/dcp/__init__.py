"""The way into `holdfast.trainer.dcp.dcp_storage` that does not load torch before it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.trainer.dcp.dcp_storage import VaultReader, VaultWriter


def storage_writer(*, step: int) -> VaultWriter:
    """Return a writer for `dcp.save` and `dcp.async_save` that keeps the state in the node's memory as of the completed
    `step`.

    Raises:
        CheckpointError: this process was not started by Holdfast.
    """
    from holdfast.trainer.checkpoint.agreement import RankGroup
    from holdfast.trainer.dcp.dcp_storage import VaultWriter, memory

    return VaultWriter(step, memory(RankGroup()))


def storage_reader() -> VaultReader:
    """Return a reader for `dcp.load` of the newest step in the memory of all ranks. Its `step` is 0 if there is none.

    All ranks call it, for they agree on the step; `$HOLDFAST_RESTORE_STEP` bounds it.

    Raises:
        CheckpointError: this process was not started by Holdfast.
    """
    from holdfast.trainer.checkpoint.agreement import RankGroup
    from holdfast.trainer.dcp.dcp_storage import VaultReader, memory

    ranks = RankGroup()
    return VaultReader(memory(ranks), ranks)
