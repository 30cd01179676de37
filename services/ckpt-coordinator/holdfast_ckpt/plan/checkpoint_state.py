"""What the coordinator knows of checkpoints: steps on disk, steps in the memory of nodes, who keeps whose copies."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.orders.backup import VaultAddress
from holdfast.topology import Mesh, Topology


class CataloguedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a job that is whole: every rank's part of it was published."""

    job: str
    step: int
    path: str
    checkpoint_bytes: int
    saved_at: datetime
    generation: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of a generation run and who keeps their copies, by node rank.

    `vaults` are addresses, "" for a node that has none; `keepers` are node ranks, None for a node without copies.
    """

    nodes: tuple[str, ...]
    vaults: tuple[str, ...]
    keepers: tuple[int | None, ...]


class HeldStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in memory, and the generation that made it."""

    generation: int
    step: int


class CertifiedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which step a job is known to be clean, as of which generation."""

    job: str
    generation: int
    step: int
    certified_at: datetime


class JobBackups(msgspec.Struct, frozen=True, kw_only=True):
    """The backups of a job's newest generation.

    `sources` are, by node rank, the vaults that may hold shards from before. `ordered_by` is the decision that the
    orders follow from, `planned_at` when its generation was started. `earlier` are other layouts, the newest first.
    `held` is the certified step that vaults keep, `coming` the one that is to take its place (see `certified`), and
    `certified_up_to` what nodes were told of steps on the disk.
    `persist` is how often a step is wanted on the disk, and `persist_every` how many steps that is.
    `replicas_max` ranks share the sending of what they have in common.
    Of the steps before `every_from` one in `every_before` is sent, from there on one in `every`.
    """

    job: str
    submitted_ms: int
    generation: int
    nproc_per_node: int
    planned_at: datetime
    ordered_by: str
    strategy: str
    protects: str
    reason: str
    every: int
    layout: Layout
    sources: tuple[tuple[VaultAddress, ...], ...]
    earlier: tuple[Layout, ...] = ()
    step_s: float | None = None
    held: HeldStep | None = None
    coming: int | None = None
    certified_up_to: int | None = None
    persist: str = "never"
    persist_every: int = 0
    mesh: str = ""
    replicas_max: int = 1
    every_before: int = 1
    every_from: int = 0

    @property
    def topology(self) -> Topology:
        """How its ranks, nodes and parallel groups map onto each other."""
        mesh = Mesh.parse(self.mesh) if self.mesh else None
        return Topology.of(len(self.layout.nodes), self.nproc_per_node, mesh)


class HeldState(StrEnum):
    """How the shards of a node rank came to be on two nodes."""

    BACKED_UP = "backed_up"  # the node sent them to its keeper
    FETCHED = "fetched"  # the node got them from its keeper


class HeldShards(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step that the ranks of a node rank have in the memory of two nodes, `node` and `keeper`."""

    job: str
    node_rank: int
    node: str
    keeper: str
    step: int
    generation: int
    shard_bytes: int
    state: HeldState
    reported_at: datetime

    @property
    def age(self) -> tuple[int, int]:
        """The greater the newer: a generation that went back makes lower steps."""
        return (self.generation, self.step)
