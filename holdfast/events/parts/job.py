"""Jobs and the nodes that run them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.events.parts.persist_every import PersistEvery
from holdfast.events.parts.scalars import Count, Name, Port
from holdfast.events.parts.training_quantities import named_tags
from holdfast.topology import Mesh, Topology

StorePorts = Annotated[tuple[Port, ...], msgspec.Meta(min_length=1)]
"""The ports that a node holds open for the TCPStores of generations: one at least, or it can serve none."""


Purpose = Literal["train", "checks", "replay"]
"""What a generation of ranks is for: training, stop-time checks of its nodes, or training again to find a fault."""


RANKS_MAX = 1_000_000
"""A job has at most this many ranks; what is asked beyond that is a mistake, and must not cost the memory."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user asked to run, as torchrun would be told.

    `start` is how a rank comes to life: forked from the node's zygote, or executed afresh for scripts
    that need environment variables to take effect at import. `token` is what the job's nodes show each other before
    they hand out its checkpoints; without one there are no copies on other nodes. `persist_every` says how often a step
    goes to the disk, see `holdfast.events.parts.persist_every`; "": as often as the cluster says. `only_nodes` are the
    nodes that it
    is to run on, where not just any will do, beside as many others as there are `witnesses`. `tags` names what
    the
    training logs of the script call a quantity (`holdfast.events.parts.training_quantities`); `training_logs` are
    patterns of further logs.

    `code_root` is the source tree of which versions are held: `script` lies in it (of a module `cwd` does), and ranks
    run it from the version that their order names; "": they run it where it lies. `code_outside` are paths in the tree
    that are no part of its code, and are reached where they lie.
    """

    name: Name
    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    nnodes: Count = 1
    nproc_per_node: Count = 1
    mesh: str | None = None
    env: dict[str, str] = {}
    cwd: str
    directory: str
    start: str = "fork"
    token: str = ""
    persist_every: str = ""
    only_nodes: tuple[Name, ...] = ()
    witnesses: Count = 0
    code_root: str = ""
    code_outside: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    training_logs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nnodes < 1 or self.nproc_per_node < 1:
            raise ValueError("a job needs at least one node and one rank per node")
        if self.nnodes * self.nproc_per_node > RANKS_MAX:
            raise ValueError(f"a job of {self.nnodes} x {self.nproc_per_node} ranks is over the limit of {RANKS_MAX:,}")
        if self.start not in ("fork", "exec"):
            raise ValueError(f"start {self.start!r} is unknown: use fork or exec")
        wanted = self.nnodes - self.witnesses
        if self.only_nodes and not len(set(self.only_nodes)) == len(self.only_nodes) == wanted:
            raise ValueError(f"{self.nnodes} nodes are asked for, and {len(self.only_nodes)} are named")
        if self.persist_every:
            PersistEvery.parse(self.persist_every)
        named_tags(self.tags)
        self.topology()

    def topology(self) -> Topology:
        """How the job's ranks lie over its nodes.

        Raises:
            MeshError: the mesh does not fit the number of ranks.
        """
        mesh = Mesh.parse(self.mesh) if self.mesh else None
        return Topology.of(self.nnodes, self.nproc_per_node, mesh)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of itself. `store_ports` are held open for the TCPStores of generations.

    On `vault_port` its vault answers other vaults; None: it has no checkpoints in memory.
    """

    address: str
    hostname: str
    boot_id: str
    store_ports: StorePorts
    cpus: Count
    memory_bytes: Count
    version: str
    vault_port: Port | None = None


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One check of a node: `status` is ok, failed or unreadable (no reading is not good health)."""

    name: str
    status: str
    detail: str = ""


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node handed to a job. `epoch` grows with every hand-over of this node and fences older orders."""

    node: Name
    epoch: Count
    address: str
    store_ports: StorePorts
    vault_port: Port | None = None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's agent takes test transfers."""

    address: str
    port: Port
