"""Errors of checkpoints and of their writers."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message names the cause and the cure."""


class DamagedCheckpoint(CheckpointError):
    """The bytes are not what the manifest says: this step is set aside and an older one is taken."""


class CheckpointMismatch(CheckpointError):
    """The checkpoint is whole, but was written by a job of another shape."""


class Superseded(CheckpointError):
    """A newer generation of the job has taken the directory over: this rank is a leftover, and must end."""
