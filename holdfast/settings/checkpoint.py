"""Section `[checkpoint]`: checkpoints in memory, on other nodes and on disk."""

from __future__ import annotations

from typing import Annotated, Literal

from holdfast.events.parts.persist_every import PersistEvery
from holdfast.settings import Section, Within

_BYTES_MAX = 1 << 53


REPLICAS_MAX = 64


BACKUP_EVERY_MAX = 1024
"""Copies further apart are useless: the disk has newer steps."""


class CheckpointPolicy(Section, frozen=True, kw_only=True):
    """Checkpoints in the memory of nodes, their copies on other nodes, and on disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Node that keeps a node's copies: one outside of all its parallel groups, the next one, or its partner in a
    pair."""

    backup_every: Annotated[int, Within(1, BACKUP_EVERY_MAX)] = 1
    """Distance of copies in steps; more while the network does not keep up."""

    replicas_max: Annotated[int, Within(1, REPLICAS_MAX, "each asks all others at every step")] = 8
    """Number of data-parallel replicas that share the sending of their common state; 1: each sends all of its state."""

    backup_bytes_per_s: Annotated[float, Within(0, _BYTES_MAX)] = 0.0
    """Limit for sending copies, per node; 0: no limit, in gaps between the collectives of its ranks."""

    copy_threads: Annotated[int, Within(1, 256)] = 1
    """Threads of a node's vault that copy the state of one rank while it goes on, on cores that it does not use."""

    memory_steps: Annotated[int, Within(2, 1024, "ranks may be one step apart")] = 2
    """Steps of each rank that a node keeps in memory, if there is room for more than a recovery may need."""

    memory_bytes: Annotated[int, Within(0, _BYTES_MAX)] = 0
    """Memory for them per node, those of other nodes included; 0: what the machine has."""

    persist_every: str = "10m"
    """Distance of checkpoints on disk, for jobs that do not set it: "500" steps, "10m", "never"."""

    persist_bytes_per_s: Annotated[float, Within(0, _BYTES_MAX)] = 256e6
    """Limit for writing to disk, per node; 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        PersistEvery.parse(self.persist_every)
