"""Section `[checkpoint]`: checkpoints in memory, on other nodes and on disk."""

from __future__ import annotations

from typing import Annotated, Literal

from holdfast.events.parts.persist_every import PersistEvery
from holdfast.settings import Section, Within

_BYTES_MAX = 1 << 53


REPLICAS_MAX = 64


BACKUP_EVERY_MAX = 1024
"""Backups further apart are no backups of steps any more: the disk has newer ones."""


class CheckpointPolicy(Section, frozen=True, kw_only=True):
    """How checkpoints stay in a node's memory, get copies on other nodes, and come to the disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Who keeps a node's copies: one outside of all its parallel groups, the next one, or two nodes each other's."""

    backup_every: Annotated[int, Within(1, BACKUP_EVERY_MAX)] = 1
    """Every how many steps a copy is sent; less often for as long as the network does not keep up."""

    replicas_max: Annotated[int, Within(1, REPLICAS_MAX, "each asks all others at every step")] = 8
    """So many data-parallel replicas share the sending of what they have in common; 1: each sends all of its own."""

    backup_bytes_per_s: Annotated[float, Within(0, _BYTES_MAX)] = 0.0
    """A node sends copies no faster; 0: as fast as they go, between the collectives of its ranks."""

    copy_threads: Annotated[int, Within(1, 256)] = 1
    """Threads of a node's vault that copy the state of one rank, while it goes on, on cores that it does not need."""

    memory_steps: Annotated[int, Within(2, 1024, "ranks may be one step apart")] = 2
    """Steps of each rank that a node keeps in memory, as long as there is room for more than a recovery may need."""

    memory_bytes: Annotated[int, Within(0, _BYTES_MAX)] = 0
    """Bytes of a node's memory for them all, those of other nodes included; 0: what the machine has."""

    persist_every: str = "10m"
    """How often a step goes to the disk, of jobs that do not say: "500" steps, "10m", "never"."""

    persist_bytes_per_s: Annotated[float, Within(0, _BYTES_MAX)] = 256e6
    """A node writes no faster; 0: as it can."""

    def __post_init__(self) -> None:
        super().__post_init__()
        PersistEvery.parse(self.persist_every)
