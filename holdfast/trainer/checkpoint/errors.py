"""Errors of checkpoints and of their writers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.exit_codes import SUPERSEDED

log = logging.getLogger("holdfast.trainer.checkpoint")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message names the cause and the cure."""


class DamagedCheckpoint(CheckpointError):
    """The bytes differ from the manifest: this step is set aside and an older one is taken."""


class CheckpointMismatch(CheckpointError):
    """The checkpoint is whole, but was written by a job of another shape."""


class StepsAbsent(CheckpointError):
    """Steps were kept, none of them can be had now, and the job's owner has not allowed to start from scratch. The
    controller knows it by its name: nodes that hold steps may be away."""


class Superseded(CheckpointError):
    """A newer generation of the job has taken the directory over: this rank is a leftover, and must end."""


class DirectoryTaken(CheckpointError):
    """Another job, which may be one of another cluster, writes there: each would remove the other's steps."""


def taken(root: object, job: str, process: str = "") -> DirectoryTaken:
    """Return the error for a place where this job writes; `process` is its rank 0, if that is known."""
    by = f" ({process})" if process else ""
    return DirectoryTaken(
        f"job {job} writes its checkpoints to {root} too{by}, and each would remove the other's steps: "
        "give one of them another directory (--job-dir, or that of its Checkpointer), or end one"
    )


@contextmanager
def ended_if_superseded() -> Iterator[None]:
    """End the rank if a newer generation has taken the directory over."""
    # No script that goes on when a save fails may go on with this: what it trains is trained elsewhere as well.
    try:
        yield
    except Superseded as error:
        log.critical("this rank ends: %s", error)
        raise SystemExit(SUPERSEDED) from error
