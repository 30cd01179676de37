"""The layout of a state on a device: who owns its tensors, how they are protected, where they lie in a shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from holdfast.trainer.checkpoint.layout.recipe import PartPlan
from holdfast.trainer.device import Unfit, gate
from holdfast.trainer.device.adapters import free_bytes
from holdfast.trainer.device.copy_plan import CopyPlan, plan_copies
from holdfast.trainer.device.guards import (
    SHADOW_SHARE_MAX,
    CopySizes,
    Guard,
    Shadowing,
    StateTensor,
    guards_of,
    is_of_device,
)
from holdfast.trainer.vault_client.shard_layout import Leaf, ShardEntry, TensorPlace, copyable, describe, place

SHADOW_BYTES_UNKNOWN = 256 << 20
"""Memory for shadows on a device that does not report its free memory."""

AskPlan = Callable[[], PartPlan]

log = logging.getLogger("holdfast.trainer.checkpoint")


class Shadow:
    """Copies of tensors on the device itself, taken in the order of training, in one piece of memory made once."""

    def __init__(self, plan: CopyPlan, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        """Raises torch.OutOfMemoryError, a RuntimeError."""
        self.memory = torch.empty(plan.nbytes - plan.shadow_begin, dtype=torch.uint8, device=device)
        self._views: Mapping[int, torch.Tensor] = {
            index: self._view(plan.offsets[index] - plan.shadow_begin, tensors[index])
            for index in plan.of(Guard.SHADOWED)
            if tensors[index].nbytes
        }

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Queue the copies on the current stream. Nothing may still be copied from the shadows before."""
        if self._views:
            sources = [copyable(tensors[index].detach()) for index in self._views]
            # In no stub of torch; its optimizers call it as well.
            torch._foreach_copy_(list(self._views.values()), sources)  # pyright: ignore[reportPrivateImportUsage]

    def _view(self, begin: int, like: torch.Tensor) -> torch.Tensor:
        part = self.memory[begin : begin + like.nbytes]
        return copyable(part.view(like.dtype).view(like.shape))


class LayoutKey(NamedTuple):
    """Equal for the same tensors at the same places, protected in the same way."""

    places: tuple[TensorPlace, ...]
    optimizers: tuple[tuple[int, ...], ...]
    """Identity of each optimizer, with its numbers of parameters and states, which may change."""
    shadows_all: bool


class Layout(NamedTuple):
    """The layout of one state, used for all its steps until the state's tensors change."""

    key: LayoutKey
    plan: CopyPlan
    description: bytes
    """The shard's index."""
    shadow: Shadow | None


def key_of(leaves: Sequence[Leaf], shadows_all: bool, small_bytes: int) -> LayoutKey:
    """Return a key that is equal for two states with the same layout.

    Tensors on the host and small ones are copied within the call, so their addresses do not count: only which leaves
    share memory does. A script may make such tensors again for each step, as `torch.get_rng_state` does.
    """
    numbers: dict[Hashable, int] = {}
    places = []
    for leaf in leaves:
        number = numbers.setdefault(leaf.memory, len(numbers))
        if leaf.tensor.device.type == "cpu":
            address = -1 - number
        else:
            address = leaf.tensor.data_ptr() if leaf.tensor.nbytes >= small_bytes else number
        places.append(place(leaf, address))
    return LayoutKey(tuple(places), tuple(map(_has, gate.seen())), shadows_all)


def _has(optimizer: Optimizer) -> tuple[int, ...]:
    return id(optimizer), len(optimizer.state), *(len(group["params"]) for group in optimizer.param_groups)


def lay_out(
    key: LayoutKey,
    leaves: Sequence[Leaf],
    tensors: Sequence[torch.Tensor],
    device: torch.device,
    sizes: CopySizes,
    part_plan: AskPlan | None,
) -> Layout:
    """Lay out the `tensors` of these leaves, each once.

    Raises Unfit: the device has no memory for what is needed, or the state lies on the host.
    """
    owned = gate.owned_by(gate.seen())
    sources = [_source(tensor, owned) for tensor in tensors]
    if not is_of_device(sources):
        raise Unfit("too much of the state lies on the host")
    free = free_bytes(device)
    share = 1.0 if key.shadows_all else SHADOW_SHARE_MAX
    shadowing = Shadowing(key.shadows_all, int(free * share) if free is not None else SHADOW_BYTES_UNKNOWN)
    try:
        plan, shadow = _planned(sources, tensors, shadowing, sizes, device)
    except torch.OutOfMemoryError:
        plan, shadow = _planned(sources, tensors, shadowing._replace(bytes_max=0), sizes, device)
    if plan.awaited is not None:
        nbytes = sum(plan.sizes[index] for index in plan.of(Guard.AWAITED))
        log.warning(
            "training waits in each step until %.2f GB of its state are copied to the host: they may change at any "
            "time, and the device has no memory for a copy of them",
            nbytes / 1e9,
        )
    offsets = dict(zip(dict.fromkeys(leaf.memory for leaf in leaves), plan.offsets, strict=True))
    entries = [
        ShardEntry(it.path, it.dtype, it.shape, offsets[leaf.memory], it.spread, leaf.tensor.device.type != "cpu")
        for it, leaf in zip(key.places, leaves, strict=True)
    ]
    index = describe(entries, [it.nbytes for it in key.places], part_plan() if part_plan is not None else None)
    return Layout(key, plan, index, shadow)


def _planned(
    sources: Sequence[StateTensor],
    tensors: Sequence[torch.Tensor],
    shadowing: Shadowing,
    sizes: CopySizes,
    device: torch.device,
) -> tuple[CopyPlan, Shadow | None]:
    plan = plan_copies(sources, guards_of(sources, shadowing, sizes.small_bytes), sizes)
    try:
        return plan, Shadow(plan, tensors, device) if plan.shadow_begin < plan.nbytes else None
    except torch.OutOfMemoryError as error:
        if not shadowing.bytes_max:
            raise Unfit(f"the device has no memory for a copy of the state's small tensors: {error}") from error
        raise


def _source(tensor: torch.Tensor, owned: Sequence[gate.Owned]) -> StateTensor:
    is_host = tensor.device.type == "cpu"
    is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    address = tensor.data_ptr() if tensor.nbytes else 0
    storage = tensor.untyped_storage().data_ptr()
    owner = None if is_host else gate.owner_of(address, tensor.nbytes, owned)
    return StateTensor(tensor.nbytes, address, storage, owner, is_host, is_plain)
