"""Marks for the entries of a state of which DCP cannot tell by itself which ranks they belong to.

An unmarked entry is global: the same on every rank (the first rank writes it) or made of DTensors (each rank writes its
own chunks, and they reshard to any mesh). Hand-written tensor and pipeline parallelism has plain tensors that differ
from rank to rank under the same name; `PerShard` and `PerRank` give them key spaces of their own::

    state = {
        "model": PerShard(model, shard="pp=1,tp=0", replica=dp_rank),  # key "shard/pp=1,tp=0/model.…", by replica 0
        "rng": PerRank(RngState()),                                    # key "rank/3/rng.…", by each rank
        "data": loader,                                                # key "data.…", by rank 0
    }
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor, Replicate

from holdfast.trainer.checkpoint.layout.dtensors import leaves
from holdfast.trainer.checkpoint.layout.recipe import KeyPath, PartPlan, TensorChunk
from holdfast.trainer.device import has_accelerator

if TYPE_CHECKING:
    from holdfast.events.parts.job import KeptFor

GLOBAL = ""


@dataclass(frozen=True)
class PerShard:
    """State that the ranks of one model shard share: same ``shard``, same values. Only ``replica`` 0 writes it.

    A checkpoint with such entries restores onto any mesh with the same shards, so the number of replicas may change.
    """

    value: Stateful
    shard: str
    replica: int = 0


@dataclass(frozen=True)
class PerRank:
    """State of one rank alone. A checkpoint with such entries needs the same world size."""

    value: Stateful


class RngState:
    """This process's random number generators: Python's, NumPy's global one, torch's, and that of its accelerator once
    it is used, under the name of its type ("cuda")."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        if (device := _device_in_use()) is not None:
            state[device] = torch.get_device_module(device).get_rng_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])
        torch.set_rng_state(state_dict["torch"])
        if has_accelerator() and (device := torch.accelerator.current_accelerator()) and device.type in state_dict:
            torch.get_device_module(device).set_rng_state(state_dict[device.type])


def _device_in_use() -> str | None:
    """Return the type of the accelerator that this process has begun to use; None: none."""
    if not has_accelerator():
        return None
    from holdfast.trainer.device.adapters import accelerator_type, is_in_use

    device = accelerator_type()
    return device if device is not None and is_in_use(device) else None


class _OptimizerState:
    """An optimizer whose parameter indices are strings on the way through DCP, which turns every key into one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        state = self._optimizer.state_dict()
        return {**state, "state": {str(index): value for index, value in state["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {int(index): value for index, value in state_dict.get("state", {}).items()}
        self._optimizer.load_state_dict({**state_dict, "state": state})


def _owned(value: Any) -> Any:
    """Return the same with copies of its tensors."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_owned(item) for item in value]
    return value


def _copied_by(value: object) -> frozenset[str]:
    """Return the keys of whose tensors `value` only takes the bytes when it loads them."""
    load = getattr(value, "load_state_dict", None)
    if not isinstance(value, torch.nn.Module) or getattr(load, "__func__", None) is not torch.nn.Module.load_state_dict:
        # With `assign=True` the tensors themselves would become the module's.
        return frozenset()
    parameters = value.named_parameters(remove_duplicate=False)
    buffers = value.named_buffers(remove_duplicate=False)
    return frozenset(name for name, _ in chain(parameters, buffers))


class KeyedState:
    """A user's state under the keys it has in a checkpoint, as this rank sees it."""

    def __init__(self, state: dict[str, Any], rank: int) -> None:
        self._state = state
        self._rank = rank
        self._values: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._spaces: dict[str, str] = {}
        self._replica: dict[str, int] = {}
        for name, entry in state.items():
            space, value, replica = GLOBAL, entry, rank
            if isinstance(entry, PerShard):
                space, value, replica = f"shard/{entry.shard}", entry.value, entry.replica
            elif isinstance(entry, PerRank):
                space, value, replica = f"rank/{rank}", entry.value, 0
            if isinstance(value, torch.optim.Optimizer):
                value = _OptimizerState(value)
            key = f"{space}/{name}" if space else name
            if "." in key:
                raise ValueError(
                    f"checkpoint entry {key!r}: a name or shard label must not contain a dot, use another one"
                )
            self._values[key], self._names[key], self._spaces[key], self._replica[key] = value, name, space, replica

    @property
    def spaces(self) -> set[str]:
        return set(self._spaces.values())

    def kept_for(self) -> KeptFor:
        """Return the jobs that can restore this state, by their number of ranks."""
        if any(space.startswith("rank/") for space in self._spaces.values()):
            return "same_ranks"
        if self.spaces <= {GLOBAL} and not any(isinstance(leaf, DTensor) for _, leaf in leaves(self.state_dict())):
            return "any_ranks"
        return "disk_reshards"

    def space_of(self, flat_key: str) -> str:
        return self._spaces[self._root(flat_key)]

    def part_plan(self, chunks: dict[KeyPath, TensorChunk]) -> PartPlan:
        """Plan what this rank writes: these tensors, and other values of which it is the first replica."""
        written = tuple(key for key, replica in self._replica.items() if replica == 0)
        return PartPlan(chunks, dict(self._spaces), written)

    def wants(self, flat_key: str) -> bool:
        return self._root(flat_key) in self._values

    def state_dict(self) -> dict[str, Any]:
        """Return the nested state that DCP's planners flatten; its tensors are those in use, not copies."""
        return {key: v.state_dict() if isinstance(v, Stateful) else v for key, v in self._values.items()}

    def writes(self, item: WriteItem, value: object) -> bool:
        """Return True if this rank writes a planned item: one replica does, never two."""
        if isinstance(value, DTensor):
            coordinate = value.device_mesh.get_coordinate()
            replicated = [at for at, how in zip(coordinate or (), value.placements, strict=True) if how == Replicate()]
            return coordinate is not None and not any(replicated)
        return self._replica[self._root(item.index.fqn)] == 0

    def load(self, loaded: dict[str, Any], *, borrowed: bool = False) -> None:
        """Hand the loaded values back: by ``load_state_dict``, or by replacing a plain value in the user's dict.

        ``borrowed``: the tensors are views of memory that is not to be trained in. A module copies its parameters and
        buffers; all others, such as an optimizer, would go on with what they are given.
        """
        for key, value in self._values.items():
            item = loaded[key]
            if borrowed and (copied := _copied_by(value)):
                item = {name: it if name in copied else _owned(it) for name, it in item.items()}
            elif borrowed:
                item = _owned(item)
            if isinstance(value, Stateful):
                value.load_state_dict(item)
            else:
                self._state[self._names[key]] = item

    def _root(self, flat_key: str) -> str:
        # Neither a shard's label nor a name contains a dot, so the first dot ends the key of the entry.
        return flat_key.partition(".")[0]
