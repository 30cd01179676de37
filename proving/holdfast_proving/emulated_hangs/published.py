"""Hangs that ByteRobust published: where each rank hung, by its place in the mesh.

Only stacks are seen, as the paper's tracer took them: no records of collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.events.parts.traces import ProcessStacks
from holdfast.topology import Mesh
from holdfast_proving.emulated_hangs.places import thread
from holdfast_proving.emulated_hangs.programs import Layout
from holdfast_proving.emulated_hangs.scenes import Seen

BACKWARD: Final = "ByteRobust figure 7"
"""The machine at fault stalls in a collective of its own; its pipeline waits for it stage by stage, all others for the
gradients of that pipeline."""
EVALUATION: Final = "ByteRobust section 5.2"
"""The stages between the ends of one pipeline are stuck in messages; all other ranks have evaluated their batches."""
PUBLISHED: Final = (BACKWARD, EVALUATION)

Calls = tuple[tuple[str, str, int], ...]

_C10D: Final = "torch/distributed/distributed_c10d.py"
_P2P: Final = "megatron/core/pipeline_parallel/p2p_communication.py"
_SCHEDULES: Final = "megatron/core/pipeline_parallel/schedules.py"
_TRAINING: Final = "megatron/training/training.py"
_MAIN: Final[Calls] = (
    ("train_step", _TRAINING, 1391),
    ("train", _TRAINING, 2213),
    ("<module>", "pretrain_gpt.py", 301),
)
_PIPELINE: Final[Calls] = (("forward_backward_pipelining_without_interleaving", _SCHEDULES, 2066), *_MAIN)
_EVALUATE: Final[Calls] = (("evaluate", _TRAINING, 2489), *_MAIN[1:])

_GRADIENTS: Final[Calls] = (
    ("reduce_scatter_tensor", _C10D, 4180),
    ("start_grad_sync", "megatron/core/distributed/param_and_grad_buffer.py", 220),
    ("finalize_model_grads", "megatron/core/distributed/finalize_model_grads.py", 290),
    *_MAIN,
)
_GATHER: Final[Calls] = (
    ("all_gather_into_tensor", _C10D, 3770),
    ("_gather_along_first_dim", "megatron/core/tensor_parallel/mappings.py", 120),
    ("backward_step", _SCHEDULES, 501),
    *_PIPELINE,
)
_SENDS: Final[Calls] = (("isend", _C10D, 2300), ("_p2p_ops", _P2P, 160), ("send_backward", _P2P, 420), *_PIPELINE)
_RECEIVES: Final[Calls] = (("irecv", _C10D, 2350), ("_p2p_ops", _P2P, 140), ("recv_backward", _P2P, 380), *_PIPELINE)
_NEXT_BATCH: Final[Calls] = (("broadcast", _C10D, 2700), ("broadcast_data", "tensor_parallel/data.py", 90), *_EVALUATE)
_LOSSES: Final[Calls] = (("all_reduce", _C10D, 2800), ("average_losses", "utils.py", 80), *_EVALUATE)
_BARRIER: Final[Calls] = (("barrier", _C10D, 4700), *_EVALUATE)
_SENDS_ON: Final[Calls] = (("isend", _C10D, 2300), ("_p2p_ops", _P2P, 150), ("send_forward", _P2P, 400), *_EVALUATE)
_WAITS_FOR: Final[Calls] = (("irecv", _C10D, 2350), ("_p2p_ops", _P2P, 140), ("recv_forward", _P2P, 350), *_EVALUATE)


def as_published(kind: str, layout: Layout, rank: int) -> Seen:
    """Return what is seen of such a hang whose cause is in this rank."""
    mesh = layout.mesh
    pipeline = {**mesh.coordinates(rank)}
    stacks = []
    for each in range(mesh.world_size):
        place = mesh.coordinates(each)
        is_inside = all(place[dim] == pipeline[dim] for dim in mesh.names if dim not in ("pp", "tp"))
        calls = _in_backward(place, pipeline, is_inside) if kind == BACKWARD else _in_evaluation(place, mesh, is_inside)
        node = str(layout.node(each))
        stacks.append(ProcessStacks(rank=each, node=node, pid=1000 + each, threads=(thread(calls),), state="S"))
    machine = layout.node(rank)
    ranks = frozenset(each for each in range(mesh.world_size) if layout.node(each) == machine)
    return Seen(kind, 0, layout, stacks, [], [], ranks, frozenset({str(machine)}), f"{kind}, at rank {rank}")


def _in_backward(place: Mapping[str, int], culprit: Mapping[str, int], is_inside: bool) -> Calls:
    if not is_inside:
        return _GRADIENTS
    if place["pp"] == culprit["pp"]:
        return _GATHER
    return _SENDS if place["pp"] == culprit["pp"] - 1 else _RECEIVES


def _in_evaluation(place: Mapping[str, int], mesh: Mesh, is_inside: bool) -> Calls:
    stages = mesh.size("pp")
    if place["pp"] == 0:
        return _NEXT_BATCH
    if place["pp"] == stages - 1:
        return _LOSSES
    if not is_inside:
        return _BARRIER
    return _SENDS_ON if 2 * place["pp"] < stages else _WAITS_FOR
