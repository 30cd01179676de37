"""Section `[checkpoint]`: checkpoints in memory, on other nodes and on disk."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.events.parts.persist_every import PersistEvery
from holdfast.settings.ranges import require_within

_BYTES_MAX = 1 << 53


REPLICAS_MAX = 64


BACKUP_EVERY_MAX = 1024
"""Backups further apart are no backups of steps any more: the disk has newer ones."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How checkpoints stay in a node's memory, get copies on other nodes, and come to the disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Who keeps a node's copies: one outside of all its parallel groups, the next one, or two nodes each other's."""

    backup_every: int = 1
    """Every how many steps a copy is sent; less often for as long as the network does not keep up."""

    replicas_max: int = 8
    """So many data-parallel replicas share the sending of what they have in common; 1: each sends all of its own."""

    backup_bytes_per_s: float = 0.0
    """A node sends copies no faster; 0: as fast as they go, between the collectives of its ranks."""

    copy_threads: int = 1
    """Threads of a node's vault that copy the state of one rank, while it goes on, on cores that it does not need."""

    memory_steps: int = 2
    """Steps of each rank that a node keeps in memory, as long as there is room for more than a recovery may need."""

    memory_bytes: int = 0
    """Bytes of a node's memory for them all, those of other nodes included; 0: what the machine has."""

    persist_every: str = "10m"
    """How often a step goes to the disk, of jobs that do not say: "500" steps, "10m", "never"."""

    persist_bytes_per_s: float = 256e6
    """A node writes no faster; 0: as it can."""

    def __post_init__(self) -> None:
        require_within(
            self,
            backup_every=(1, BACKUP_EVERY_MAX),
            replicas_max=(1, REPLICAS_MAX, "each asks all others at every step"),
            backup_bytes_per_s=(0, _BYTES_MAX),
            copy_threads=(1, 256),
            memory_steps=(2, 1024, "ranks may be one step apart"),
            memory_bytes=(0, _BYTES_MAX),
            persist_bytes_per_s=(0, _BYTES_MAX),
        )
        PersistEvery.parse(self.persist_every)
