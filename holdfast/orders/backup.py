"""Copies of a node's checkpoints. The ckpt coordinator writes it, the node's agent hands it to the node's vault.

Its key differs from that of the controller's order, so that each key has one writer. No recovery waits for it. An order
belongs to one generation; a vault follows the newest that its agent hands it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.events.parts.scalars import Count, Id, Name, Port
from holdfast.orders.base import Order


class VaultAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address at which the vault of a node serves other vaults."""

    node: Name
    host: str
    port: Port


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose ranks share state with those of another node, and the vaults that may hold their shards."""

    node_rank: Count
    vault: VaultAddress | None = None
    """The node's own vault, if it has one."""
    others: tuple[VaultAddress, ...] = ()
    """Vaults that may hold copies, or shards of earlier generations."""


class BackupOrder(Order, frozen=True, kw_only=True, omit_defaults=True):
    """The backups of one node's ranks during one generation of a job.

    Vaults keep the certified step, which `certified_generation` made, and the coming step of this generation, whatever
    comes after them.
    """

    kind = "backup"
    writer = "ckpt"
    addressee = "node"

    node: Name
    job: Name
    submitted_ms: Count
    """Submission of the job, in ms since 1970; distinguishes it from a later one of the same name."""
    world_size: Count
    generation: Count
    node_rank: Count
    nproc_per_node: Count
    every: Count = 1
    """Size of a block of step numbers. The first kept step of each block goes to `keeper`, as soon as it is sealed."""
    every_before: Count = 1
    """Size of a block before step `every_from`: changes are announced, so that all nodes send the same steps."""
    every_from: Count = 0
    persist_every: Count = 0
    """Size of a block of step numbers of which the first kept step also goes to disk; 0: no step does."""
    keeper: VaultAddress | None = None
    """The vault that receives the copies; None: there are no copies, see `reason`."""
    keeps: tuple[Count, ...] = ()
    """Node ranks whose copies this node receives."""
    sources: tuple[VaultAddress, ...] = ()
    """Other vaults that may hold earlier shards of these ranks, the most likely first."""
    alike: tuple[tuple[Count, ...], ...] = ()
    """For each rank of the node the ranks with the same state, itself included. Shared state is sent once: these ranks
    take turns at the chunks of each shard."""
    replicas: tuple[Replica, ...] = ()
    """The nodes of the ranks in `alike`."""
    certified_step: Count | None = None
    certified_generation: Count = 0
    coming_step: Count | None = None
    complete_step: Count | None = None
    """Newest step that all nodes are known to have twice, and the generation that made it. It stays in memory until a
    newer one is named: a job that loses several vaults at once does not go back further."""
    complete_generation: Count = 0
    frozen_step: Count | None = None
    """While some rank of the job keeps no steps: the last step that all ranks had, and the generation that made it.
    Other ranks' newer steps do not take its memory."""
    frozen_generation: Count = 0
    certified_up_to: Count | None = None
    """The newest step on disk up to this one stays."""
    number: Count = 0
    """Counts the changes of a plan within its generation: an older order does not replace a newer one."""
    reason: str = ""
    cause: Id | None = None

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy; orders of one generation differ by their cause."""
        return f"{self.key}-{self.submitted_ms}-{self.generation}-{self.cause or ''}"

    @property
    def age(self) -> tuple[int, int, int]:
        """Orders of one job compare by this, the oldest first."""
        return (self.submitted_ms, self.generation, self.number)

    @property
    def ranks(self) -> range:
        """Global ranks of this node."""
        first = self.node_rank * self.nproc_per_node
        return range(first, first + self.nproc_per_node)

    def is_sent(self, step: int, before: int | None) -> bool:
        """Return True if the shards of this step go to the keeper; `before` as for `begins_block`."""
        return begins_block(step, before, max(1, self.every if step >= self.every_from else self.every_before))

    def is_persisted(self, step: int, before: int | None) -> bool:
        """Return True if this step goes to the disk; `before` as for `begins_block`."""
        return self.persist_every > 0 and begins_block(step, before, self.persist_every)

    def alike_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that share state with a rank of this node, itself included; () if there are none."""
        local_rank = rank - self.ranks.start
        return self.alike[local_rank] if 0 <= local_rank < len(self.alike) else ()

    def is_kept_here(self, rank: int) -> bool:
        """Return True if this node receives the copies of a global rank."""
        return rank // self.nproc_per_node in self.keeps


def begins_block(step: int, before: int | None, every: int) -> bool:
    """Return True if a step is the first of its block of `every` numbers that its job keeps. `before` is the one that
    it kept last, or went on from; None: that is not known.

    A job need not keep every step, and so not the multiples of `every`. All its ranks keep the same ones, so they
    choose the same step without talking to each other. A node that has just come, and knows of no step before, chooses
    only what all others choose whatever they keep.
    """
    return step % every == 0 or (before is not None and before // every != step // every)


def submission_ms(submitted_at: datetime) -> int:
    """Return the time of a job's submission as in orders and the names of shards, in ms since 1970."""
    return round(submitted_at.timestamp() * 1000)
