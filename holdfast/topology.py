"""The mapping between ranks, nodes and parallel groups.

A mesh is an ordered list of named dimensions, outermost first, as in PyTorch's DeviceMesh: in
`pp=2,dp=2,tp=2` neighbouring ranks differ in `tp`. Megatron's order `tp-cp-ep-dp-pp` names the same
thing innermost first. Ranks fill nodes in order: rank r runs on node r // ranks_per_node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

MEGATRON_ORDER = ("tp", "cp", "ep", "dp", "pp")
"""Megatron-LM's default order of dimensions, innermost first."""


DATA_PARALLEL = ("dp", "data", "dp_replicate", "ddp", "dp_shard", "fsdp")
"""Names of dimensions whose size may change when a job gets more or fewer ranks: the first one that a mesh has."""

_SIZE = re.compile("[0-9]{1,9}")


class MeshError(ValueError):
    """An impossible mesh; the message names the cause and the cure."""


class Mesh(msgspec.Struct, frozen=True):
    """The shape of a job: dimension names and sizes, outermost first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or not self.names:
            raise MeshError("a mesh needs one size for each dimension, and at least one dimension")
        if len(set(self.names)) != len(self.names):
            raise MeshError(f"mesh {self} names a dimension twice")
        for name, size in zip(self.names, self.sizes, strict=True):
            if not name.isidentifier():
                raise MeshError(f"mesh dimension {name!r} is not a name; write for example pp=2,dp=2,tp=2")
            if size < 1:
                raise MeshError(f"mesh dimension {name}={size} must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read `pp=2,dp=2,tp=2` (outermost first); raises MeshError if it is not of that form."""
        names: list[str] = []
        sizes: list[int] = []
        for part in text.split(","):
            name, equals, size = part.strip().partition("=")
            if not equals or not _SIZE.fullmatch(size.strip()):
                raise MeshError(f"mesh {text!r} is not understood at {part!r}; write for example pp=2,dp=2,tp=2")
            names.append(name.strip())
            sizes.append(int(size))
        return cls(tuple(names), tuple(sizes))

    @classmethod
    def megatron(cls, order: Sequence[str] = MEGATRON_ORDER, **sizes: int) -> Mesh:
        """Return the mesh of Megatron-style sizes: `order` is innermost first, absent dimensions have size 1.

        Raises MeshError for a size of a dimension that `order` does not name.
        """
        if unknown := set(sizes) - set(order):
            raise MeshError(f"no place in order {'-'.join(order)} for {', '.join(sorted(unknown))}")
        outermost_first = tuple(reversed(order))
        return cls(outermost_first, tuple(sizes.get(name, 1) for name in outermost_first))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))

    @property
    def world_size(self) -> int:
        total = 1
        for size in self.sizes:
            total *= size
        return total

    def resized(self, world_size: int) -> Mesh:
        """Return the mesh with as much data parallelism as makes `world_size` ranks; raises MeshError if none does."""
        if world_size == self.world_size:
            return self
        dim = next((name for name in DATA_PARALLEL if name in self.names), None)
        if dim is None:
            raise MeshError(f"mesh {self} keeps its size: it has no dimension named {', '.join(DATA_PARALLEL)}")
        others = self.world_size // self.size(dim)
        if world_size < 1 or world_size % others:
            raise MeshError(f"{world_size} ranks are no multiple of {others}, the ranks of one {dim} replica of {self}")
        at = self._index(dim)
        return Mesh(self.names, (*self.sizes[:at], world_size // others, *self.sizes[at + 1 :]))

    def stride(self, dim: str) -> int:
        """Return the distance in rank of two neighbours along `dim`."""
        stride = 1
        for size in self.sizes[self._index(dim) + 1 :]:
            stride *= size
        return stride

    def size(self, dim: str) -> int:
        return self.sizes[self._index(dim)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of `rank`: dimension name -> index."""
        self._check_rank(rank)
        where: dict[str, int] = {}
        for name, size in zip(reversed(self.names), reversed(self.sizes), strict=True):
            rank, where[name] = divmod(rank, size)
        return {name: where[name] for name in self.names}

    def rank(self, coordinates: dict[str, int]) -> int:
        """Return the rank at `coordinates` (every dimension given)."""
        rank = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            index = coordinates[name]
            if not 0 <= index < size:
                raise MeshError(f"{name}={index} lies outside mesh {self}")
            rank = rank * size + index
        return rank

    def group_of(self, rank: int, dim: str) -> range:
        """Return the ranks of `rank`'s parallel group along `dim`, itself included."""
        self._check_rank(rank)
        stride = self.stride(dim)
        size = self.size(dim)
        first = rank - (rank // stride % size) * stride
        return range(first, first + stride * size, stride)

    def groups(self, dim: str) -> list[range]:
        """Return every parallel group along `dim`; each rank is in exactly one. O(ranks / size)."""
        stride = self.stride(dim)
        block = stride * self.size(dim)
        return [
            range(start + offset, start + offset + block, stride)
            for start in range(0, self.world_size, block)
            for offset in range(stride)
        ]

    def _index(self, dim: str) -> int:
        try:
            return self.names.index(dim)
        except ValueError:
            raise MeshError(f"mesh {self} has no dimension {dim!r}") from None

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise MeshError(f"rank {rank} lies outside mesh {self} with {self.world_size} ranks")


class Topology(msgspec.Struct, frozen=True):
    """A mesh laid out over nodes of equal size."""

    mesh: Mesh
    ranks_per_node: int

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1:
            raise MeshError("a node needs at least one rank")
        if self.mesh.world_size % self.ranks_per_node:
            raise MeshError(
                f"mesh {self.mesh} has {self.mesh.world_size} ranks,"
                f" which {self.ranks_per_node} ranks per node do not divide"
            )

    @classmethod
    def of(cls, nnodes: int, ranks_per_node: int, mesh: Mesh | None = None) -> Topology:
        """Return the topology of a job; without a mesh every rank is a data-parallel replica.

        Raises MeshError if the mesh does not have nnodes x ranks_per_node ranks.
        """
        world_size = nnodes * ranks_per_node
        mesh = mesh or Mesh(("dp",), (world_size,))
        if mesh.world_size != world_size:
            raise MeshError(
                f"mesh {mesh} has {mesh.world_size} ranks, but {nnodes} nodes x {ranks_per_node} ranks per node make"
                f" {world_size}; change --mesh, --nnodes or --nproc-per-node"
            )
        return cls(mesh, ranks_per_node)

    @property
    def nnodes(self) -> int:
        return self.mesh.world_size // self.ranks_per_node

    def node_rank_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def ranks_of(self, node_rank: int) -> range:
        """Return the ranks on the node with this index."""
        return range(node_rank * self.ranks_per_node, (node_rank + 1) * self.ranks_per_node)
