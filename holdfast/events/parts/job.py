"""Jobs and the nodes that run them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.events.parts.launch import Launch
from holdfast.events.parts.persist_every import PersistEvery
from holdfast.events.parts.scalars import Count, Id, Name, Port
from holdfast.events.parts.training_quantities import named_tags
from holdfast.topology import Mesh, Topology

StorePorts = Annotated[tuple[Port, ...], msgspec.Meta(min_length=1)]
"""The ports that a node holds open for the TCPStores of generations: one at least, or it can serve none."""


Purpose = Literal["train", "checks", "replay"]
"""Purpose of a generation: training, stop-time checks of its nodes, or repeated training to find a fault."""

KeptFor = Literal["any_ranks", "disk_reshards", "same_ranks"]
"""Jobs that can restore a kept step. `any_ranks`: of any number of ranks. `disk_reshards`: of the same number from
memory, of any number from the disk. `same_ranks`: of the same number only, as far as is known."""


RANKS_MAX = 1_000_000
"""A job has at most this many ranks; a larger number is a mistake, and must not exhaust the memory."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as the user asked for it, much like the arguments of torchrun."""

    name: Name
    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    nnodes: Count = 1
    """Number of nodes to run on; in an elastic job that of the present generation."""
    nnodes_min: Count = 0
    """An elastic job runs on any number of nodes from this one to `nnodes_max`; both 0: `nnodes` never changes."""
    nnodes_max: Count = 0
    nproc_per_node: Count = 1
    mesh: str | None = None
    env: dict[str, str] = {}
    cwd: str
    directory: str
    start: str = "fork"
    """`fork` from the node's zygote; `exec` for scripts whose environment variables must be set before import."""
    python: str = ""
    """The interpreter of the ranks, where a node has it; "": that of the node's agent."""
    token: str = ""
    """Secret that the job's nodes show each other before they hand out its checkpoints; "": no copies on other
    nodes."""
    persist_every: str = ""
    """See `holdfast.events.parts.persist_every`; "": the cluster's setting."""
    allow_scratch: bool = False
    """True if the job may start from scratch when all its checkpoints are lost; else it ends."""
    only_nodes: tuple[Name, ...] = ()
    """The nodes to run on, beside the `witnesses`; empty: any."""
    witnesses: Count = 0
    """Further nodes of any name."""
    code_root: str = ""
    """Source tree under versions, in which `script` (of a module, `cwd`) lies; "": no versions, ranks run it in
    place."""
    code_outside: tuple[str, ...] = ()
    """Paths in the tree that are no part of its code, and are used in place."""
    tags: dict[str, str] = {}
    """Quantity -> tag in the script's training logs (`holdfast.events.parts.training_quantities`)."""
    training_logs: tuple[str, ...] = ()
    """Patterns of further training logs."""
    launch: Launch = Launch()
    data: tuple[str, ...] = ()
    """Files and directories that every node must have; the warm-up looks for them."""
    warm_up: bool = True
    """False: it starts on nodes that were not tested."""

    def __post_init__(self) -> None:
        if self.nnodes < 1 or self.nproc_per_node < 1:
            raise ValueError("a job needs at least one node and one rank per node")
        if self.nnodes * self.nproc_per_node > RANKS_MAX:
            raise ValueError(f"a job of {self.nnodes} x {self.nproc_per_node} ranks is over the limit of {RANKS_MAX:,}")
        if self.is_elastic and not 1 <= self.nnodes_min <= self.nnodes <= self.nnodes_max:
            raise ValueError(f"{self.nnodes} nodes are not from {self.nnodes_min} to {self.nnodes_max}")
        if self.is_elastic and (self.only_nodes or self.witnesses):
            raise ValueError("a job on named nodes cannot have a variable number of them")
        if self.start not in ("fork", "exec"):
            raise ValueError(f"start {self.start!r} is unknown: use fork or exec")
        wanted = self.nnodes - self.witnesses
        if self.only_nodes and not len(set(self.only_nodes)) == len(self.only_nodes) == wanted:
            raise ValueError(f"{self.nnodes} nodes are asked for, and {len(self.only_nodes)} are named")
        if self.persist_every:
            PersistEvery.parse(self.persist_every)
        named_tags(self.tags)
        self.topology()

    @property
    def is_elastic(self) -> bool:
        return bool(self.nnodes_min or self.nnodes_max)

    def on(self, nnodes: int) -> JobSpec:
        """Return an elastic job on this many nodes; the data-parallel dimension of its mesh follows.

        Raises:
            ValueError: the job does not run on `nnodes` nodes, or its mesh does not fit them.
        """
        mesh = self.mesh
        if mesh:
            mesh = str(Mesh.parse(mesh).resized(nnodes * self.nproc_per_node))
        return msgspec.structs.replace(self, nnodes=nnodes, mesh=mesh)

    def topology(self) -> Topology:
        """Return the layout of the job's ranks on its nodes.

        Raises:
            MeshError: the mesh does not fit the number of ranks.
        """
        mesh = Mesh.parse(self.mesh) if self.mesh else None
        return Topology.of(self.nnodes, self.nproc_per_node, mesh)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of a node."""

    address: str
    hostname: str
    boot_id: str
    store_ports: StorePorts
    """Held open for the TCPStores of generations."""
    cpus: Count
    memory_bytes: Count
    version: str
    vault_port: Port | None = None
    """Port at which its vault serves other vaults; None: it keeps no checkpoints in memory."""
    rack: str = ""
    """Its rack, `[network] rack`: nodes of a rack share power or a switch. "": unknown."""


class AgentPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place where an agent runs, as a person finds it."""

    hostname: str
    pid: Count
    state_dir: str


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one check of a node."""

    name: str
    status: str
    """ok, failed or unreadable; a check that cannot be read does not prove good health."""
    detail: str = ""


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node handed to a job."""

    node: Name
    epoch: Count
    """Grows with every hand-over of this node and fences older orders."""
    instance: Id | None = None
    """The node's agent as the standby service knew it; None in events from before grants had it."""
    address: str
    store_ports: StorePorts
    vault_port: Port | None = None
    rack: str = ""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Address at which a node's agent receives test transfers."""

    address: str
    port: Port
