"""Where a node's checkpoints are kept a second time: the ckpt coordinator writes it, the node's vault does it.

One key per node beside the controller's order, so that each key has one writer. No recovery waits for it.
An order belongs to one generation; a vault goes by the newest that its agent hands it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.decoding import read
from holdfast.events.parts.scalars import Count, Id, Name, Port


class VaultAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the vault of a node answers other vaults."""

    node: Name
    host: str
    port: Port


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose ranks have state in common with those of another one, and the vaults that may hold their shards.

    `vault` is the node's own, if it has one; `others` are those that may hold copies, or shards from before.
    """

    node_rank: Count
    vault: VaultAddress | None = None
    others: tuple[VaultAddress, ...] = ()


class BackupOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The backups of one node's ranks during one generation of a job.

    `keeper` is where the shards of every `every`-th step go as soon as they are sealed; None: nowhere (see `reason`).
    Before step `every_from` it is every `every_before`-th: a change is named ahead, so that all send the same steps.
    `keeps` are the node ranks whose shards come here in the same way.
    Every `persist_every`-th step also goes to the disk; 0: none does.
    `sources` are the vaults that may hold shards of these ranks from before, the likeliest first; the node's own is not
    among them. `submitted_ms` tells the job from a later one of the same name.

    `alike` has for each rank of the node those that are replicas of each other, itself among them: what they have in
    common is sent once, the chunks of each shard in turn by one of them. `replicas` are the nodes of these ranks.

    Vaults keep the certified step, which `certified_generation` made, and the coming one of this generation, whatever
    comes after them. Of the steps on the disk the newest up to `certified_up_to` stays.
    """

    node: Name
    job: Name
    submitted_ms: Count
    world_size: Count
    generation: Count
    node_rank: Count
    nproc_per_node: Count
    every: Count = 1
    every_before: Count = 1
    every_from: Count = 0
    persist_every: Count = 0
    keeper: VaultAddress | None = None
    keeps: tuple[Count, ...] = ()
    sources: tuple[VaultAddress, ...] = ()
    alike: tuple[tuple[Count, ...], ...] = ()
    replicas: tuple[Replica, ...] = ()
    certified_step: Count | None = None
    certified_generation: Count = 0
    coming_step: Count | None = None
    certified_up_to: Count | None = None
    reason: str = ""
    cause: Id | None = None

    @property
    def ranks(self) -> range:
        """The global ranks of this node."""
        first = self.node_rank * self.nproc_per_node
        return range(first, first + self.nproc_per_node)

    def is_sent(self, step: int) -> bool:
        """Whether this is one of the steps that go to the keeper."""
        return step % max(1, self.every if step >= self.every_from else self.every_before) == 0

    def alike_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that a rank of this node has state in common with, itself among them; () where there is none."""
        local_rank = rank - self.ranks.start
        return self.alike[local_rank] if 0 <= local_rank < len(self.alike) else ()

    def is_kept_here(self, rank: int) -> bool:
        """Whether this node keeps the copies of a global rank."""
        return rank // self.nproc_per_node in self.keeps


def submission_ms(submitted_at: datetime) -> int:
    """The time of a job's submission as orders and the names of shards carry it."""
    return round(submitted_at.timestamp() * 1000)


class UnreadableBackupOrder(ValueError):
    """A backup order that cannot be read; the message says where it breaks."""


_decoder = msgspec.json.Decoder(BackupOrder)


def encode(order: BackupOrder) -> bytes:
    """The order as JSON."""
    return msgspec.json.encode(order)


def decode(body: bytes) -> BackupOrder:
    """The order in `body`.

    Raises:
        UnreadableBackupOrder: not JSON, or with a missing or wrong field.
    """
    return read(_decoder, body, UnreadableBackupOrder)
