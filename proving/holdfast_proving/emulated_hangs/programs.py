"""What each rank does in a step: Megatron's 1F1B with TP, EP and DP, or FSDP with sharding and replication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from holdfast.topology import Mesh

# Sizes only tell collectives apart, as those of a real model do.
_TOKENS = 8192
_ACTIVATION = 10_485_760
_GATHERED_ACTIVATION = 4 * _ACTIVATION
_STAGE_GRADIENTS = 100_000_000
_LAYER_PARAMETERS = 5_000_000
_LAYER_SHARD = 78_125

JOIN = "join"
"""The main stream waits for the gradients' one."""

Stream = Literal["main", "grads", "sends"]


@dataclass(frozen=True, slots=True)
class Op:
    """A step of a rank's program.

    With a `role` it is a collective of the rank's group of that role, or point-to-point with the neighbour `prev` or
    `next`. Without, the host waits there for the device (`sync`), or does something of its own. `place` names the stack
    of a host that waits there.
    """

    place: str
    role: str = ""
    name: str = ""
    elements: int = 0
    stream: Stream = "main"
    is_sync: bool = False

    @property
    def is_p2p(self) -> bool:
        return self.name in ("send", "recv")


@dataclass
class Layout:
    """Ranks, groups and programs of a job.

    `groups`: by rank, the number of its group in each role; `members`: by group, its ranks.
    """

    mesh: Mesh
    ranks_per_node: int
    style: Literal["megatron", "fsdp"]
    programs: list[list[Op]]
    groups: list[dict[str, int]]
    members: list[list[int]] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.mesh.world_size

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    @property
    def runs_in_launch_order(self) -> bool:
        """Tensor parallelism in Megatron asks for `CUDA_DEVICE_MAX_CONNECTIONS=1`."""
        return self.style == "megatron" and self.mesh.size("tp") > 1


def megatron(pp: int, dp: int, tp: int, ep: int, microbatches: int, steps: int, ranks_per_node: int) -> Layout:
    """1F1B without interleaving. Ranks are `pp, dp, tp`, outermost first; experts are spread over `ep` of `dp`."""
    mesh = Mesh(("pp", "dp", "tp"), (pp, dp, tp))
    layout = Layout(mesh, ranks_per_node, "megatron", [], [{} for _ in range(mesh.world_size)])
    _add_group(layout, "world", "default_pg", list(range(mesh.world_size)))
    for dim, description in (("tp", "TENSOR_MODEL_PARALLEL_GROUP"), ("dp", "DATA_PARALLEL_GROUP")):
        if mesh.size(dim) > 1:
            for group in mesh.groups(dim):
                _add_group(layout, dim, description, list(group))
    if pp > 1:
        for group in mesh.groups("pp"):
            _add_group(layout, "pp", "PIPELINE_MODEL_PARALLEL_GROUP", list(group))
    if ep > 1:
        for group in mesh.groups("dp"):
            whole = list(group)
            for start in range(0, dp, ep):
                _add_group(layout, "ep", "EXPERT_MODEL_PARALLEL_GROUP", whole[start : start + ep])
    for rank in range(mesh.world_size):
        where = mesh.coordinates(rank)
        step = list(_step_1f1b(where["pp"], pp, dp, tp, ep, microbatches, where["tp"] == 0))
        layout.programs.append(step * steps)
    return layout


def fsdp(shard: int, replicate: int, layers: int, steps: int, ranks_per_node: int) -> Layout:
    """HSDP: parameters gathered and gradients scattered in `shard` (at least 2), gradients summed over `replicate`."""
    mesh = Mesh(("replicate", "shard"), (replicate, shard))
    layout = Layout(mesh, ranks_per_node, "fsdp", [], [{} for _ in range(mesh.world_size)])
    _add_group(layout, "world", "default_pg", list(range(mesh.world_size)))
    for dim in ("shard", "replicate"):
        if mesh.size(dim) > 1:
            for group in mesh.groups(dim):
                _add_group(layout, dim, f"mesh_{dim}", list(group))
    step = list(_step_fsdp(layers, replicate))
    layout.programs = [step * steps for _ in range(mesh.world_size)]
    return layout


def _add_group(layout: Layout, role: str, description: str, ranks: list[int]) -> None:
    for rank in ranks:
        layout.groups[rank][role] = len(layout.members)
    layout.members.append(ranks)
    layout.descriptions.append(description)


def _step_1f1b(stage: int, pp: int, dp: int, tp: int, ep: int, microbatches: int, reads_data: bool) -> Iterator[Op]:
    warmup = min(pp - stage - 1, microbatches)
    is_first, is_last = stage == 0, stage == pp - 1

    def forward() -> Iterator[Op]:
        if is_first or is_last:
            if reads_data:
                yield Op("data")
            if tp > 1:
                yield Op("forward", "tp", "broadcast", _TOKENS)
        yield from layer("forward")

    def layer(place: str) -> Iterator[Op]:
        if tp > 1:
            yield Op(place, "tp", "_all_gather_base", _GATHERED_ACTIVATION)
        if ep > 1:
            yield Op("experts", "ep", "all_to_all", 0)
            yield Op("experts", is_sync=True)
            yield Op("experts", "ep", "all_to_all", 0)
        if tp > 1:
            yield Op(place, "tp", "_reduce_scatter_base", _GATHERED_ACTIVATION)

    def send(place: str, to: str) -> Op:
        return Op(place, to, "send", _ACTIVATION, "sends")

    def receive(place: str, source: str) -> Iterator[Op]:
        yield Op(place, source, "recv", _ACTIVATION)
        yield Op(place, is_sync=True)

    for _ in range(warmup):
        if not is_first:
            yield from receive("recv_forward", "prev")
        yield from forward()
        if not is_last:
            yield send("send_forward", "next")
    for number in range(microbatches - warmup):
        if not is_first:
            yield from receive("recv_forward", "prev")
        yield from forward()
        if not is_last:
            yield send("send_forward", "next")
            yield from receive("send_forward_recv_backward", "next")
        yield from layer("backward")
        if not is_first:
            yield send("send_backward", "prev")
        if number == microbatches - 1 and dp > 1:
            yield Op("backward", "dp", "_reduce_scatter_base", _STAGE_GRADIENTS, "grads")
    for number in range(warmup):
        yield from receive("recv_backward", "next")
        yield from layer("backward")
        if number == warmup - 1 and dp > 1:
            yield Op("backward", "dp", "_reduce_scatter_base", _STAGE_GRADIENTS, "grads")
        if not is_first:
            yield send("send_backward", "prev")
    yield Op("optimizer", name=JOIN)
    yield Op("optimizer", "world", "all_reduce", 1)
    yield Op("optimizer", is_sync=True)
    if dp > 1:
        yield Op("optimizer", "dp", "_all_gather_base", _STAGE_GRADIENTS)
    yield Op("checkpoint")
    yield Op("barrier", "world", "all_reduce", 2)
    yield Op("barrier", is_sync=True)


def _step_fsdp(layers: int, replicate: int) -> Iterator[Op]:
    yield Op("data")
    for _ in range(layers):
        yield Op("unshard", "shard", "_all_gather_base", _LAYER_PARAMETERS)
        yield Op("forward")
    yield Op("loss", is_sync=True)
    for _ in range(layers):
        yield Op("unshard", "shard", "_all_gather_base", _LAYER_PARAMETERS)
        yield Op("backward")
        yield Op("reduce_grads", "shard", "_reduce_scatter_base", _LAYER_PARAMETERS, "grads")
        if replicate > 1:
            yield Op("reduce_grads", "replicate", "all_reduce", _LAYER_SHARD, "grads")
    yield Op("optimizer", name=JOIN)
    yield Op("optimizer", "world", "all_reduce", 1)
    yield Op("optimizer", is_sync=True)
    yield Op("checkpoint")
    yield Op("barrier", "world", "all_reduce", 2)
    yield Op("barrier", is_sync=True)
