"""Records that the coordinator stores: steps on disk, shards in the memory of nodes, backup plans."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from math import lcm

import msgspec

from holdfast.orders.backup import VaultAddress
from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.losses.alternatives import PlanOdds


class CataloguedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint of a job: every rank's part of it was published."""

    job: str
    step: int
    path: str
    checkpoint_bytes: int
    saved_at: datetime
    generation: int


class VaultLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of a generation and the keepers of their copies, by node rank."""

    nodes: tuple[str, ...]
    vaults: tuple[str, ...]
    """Addresses of the nodes' vaults; "" for a node without one."""
    keepers: tuple[int | None, ...]
    """Node ranks; None for a node whose copies no node keeps."""
    racks: tuple[str, ...] = ()
    """"" for a node that did not name its rack; () if none did."""


class HeldStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in memory, and the generation that made it."""

    generation: int
    step: int

    @property
    def age(self) -> tuple[int, int]:
        """Sort key, greater for newer steps."""
        return (self.generation, self.step)


class CertifiedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step of a job that is known to be clean, and the generation that it is known for."""

    job: str
    generation: int
    step: int
    certified_at: datetime


class KeptSpacing(msgspec.Struct, frozen=True, kw_only=True):
    """From `step` on ranks keep one step in `every` in memory (ADR 58)."""

    every: int = 1
    step: int = 0
    reason: str = ""


class JobBackups(msgspec.Struct, frozen=True, kw_only=True):
    """The backup plan of a job's newest generation."""

    job: str
    submitted_ms: int
    generation: int
    nproc_per_node: int
    planned_at: datetime
    """Start of the generation."""
    ordered_by: str
    """Id of the decision that the orders follow from."""
    strategy: str
    protects: str
    reason: str
    every: int
    """One step in `every` is sent to the keepers, from step `every_from` on; before it one in `every_before`."""
    layout: VaultLayout
    sources: tuple[tuple[VaultAddress, ...], ...]
    """Vaults that may hold earlier shards, for each node rank."""
    earlier: tuple[VaultLayout, ...] = ()
    """Earlier layouts, the newest first."""
    step_s: float | None = None
    held: HeldStep | None = None
    """The certified step that vaults keep."""
    coming: int | None = None
    """The step that is to replace `held` (see `certified.py`)."""
    complete: HeldStep | None = None
    """The newest step of which each node and its keeper have a copy (see `complete.py`)."""
    frozen: HeldStep | None = None
    """The step that all nodes keep because some node cannot keep steps now (see `complete.py`). It is released once all
    have reported a step above `frozen_until`."""
    frozen_until: int = 0
    certified_up_to: int | None = None
    """The newest certified step that the nodes' orders announced."""
    persist: str = "never"
    """The job's wish for steps on the disk: a number of steps, a time or "never"."""
    persist_every: int = 0
    """`persist` in steps."""
    mesh: str = ""
    replicas_max: int = 1
    """Most ranks that share the sending of what they have in common."""
    every_before: int = 1
    every_from: int = 0
    kept: KeptSpacing = KeptSpacing()
    number: int = 0
    """Number of changes of this generation's plan that went to the nodes."""
    odds: tuple[PlanOdds, ...] = ()
    """Losses that this plan survives, and that others would; () in a plan of an earlier release."""

    @property
    def named_every(self) -> int:
        """Distance of the steps that can be named before they are made: those are kept in memory, and sent."""
        return lcm(self.every, self.kept.every)

    @property
    def copied_every(self) -> int:
        """Shortest distance of two steps that are sent to the keepers."""
        return max(1, self.every // self.kept.every) * self.kept.every

    @property
    def topology(self) -> Topology:
        mesh = Mesh.parse(self.mesh) if self.mesh else None
        return Topology.of(len(self.layout.nodes), self.nproc_per_node, mesh)


class HeldState(StrEnum):
    """The way in which the shards of a node rank came to be on two nodes."""

    BACKED_UP = "backed_up"  # the node sent them to its keeper
    FETCHED = "fetched"  # the node fetched them from its keeper


class HeldShards(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step of a node rank that is in the memory of two nodes, `node` and `keeper`."""

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
        """Sort key, greater for newer shards: a generation that went back makes lower steps."""
        return (self.generation, self.step)
