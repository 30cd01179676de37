"""The processors that a rank is bound to, near its GPU, as torchrun's `--numa-binding` chooses them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.events.parts.launch import NumaBinding
from holdfast_agent.plan.devices.visible_gpus import visible_gpus


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    """"": the driver does not report it."""
    numa_node: int


class Processors(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's processors, and its GPUs in the order of their PCI addresses, which is that of their indexes."""

    gpus: tuple[Gpu, ...]
    of_node: Mapping[int, frozenset[int]]
    """Processors of each NUMA node."""
    core: Mapping[int, int]
    """Lowest number of the processors on the same core, by processor."""
    cache: Mapping[int, int]
    """Lowest number of the processors that share the last level of cache, by processor."""
    package: Mapping[int, int]
    """The socket, by processor."""
    allowed: frozenset[int]
    """Processors that this node's ranks may use."""


class CannotBind(ValueError):
    """The ranks' processors cannot be chosen; the message is the reason."""


def bound_to(binding: NumaBinding, index: int, visible: str | None, machine: Processors) -> frozenset[int]:
    """Return the processors of the rank whose device has this index. `visible`: CUDA_VISIBLE_DEVICES of the rank.

    Raises CannotBind.
    """
    gpus = machine.gpus
    if visible is not None:
        gpus = tuple(gpus[one] for one in visible_gpus(visible, [gpu.uuid for gpu in gpus]).indexes)
    if index >= len(gpus):
        raise CannotBind(f"it sees {len(gpus)} GPUs, so none is that of local rank {index}")
    node = gpus[index].numa_node
    near = _of_node(node, machine)
    if binding == "node":
        return near
    if binding == "socket":
        return _of_socket(near, machine)
    # Ranks whose GPUs are on one NUMA node share its processors.
    beside = [number for number, gpu in enumerate(gpus) if gpu.numa_node == node]
    place = beside.index(index)
    if binding == "core-complex":
        caches = sorted(_grouped(near, machine.cache.__getitem__).items(), key=lambda it: (-len(it[1]), it[0]))
        return caches[place % len(caches)][1]
    cores = [cpus for _, cpus in sorted(_grouped(near, machine.core.__getitem__).items())]
    each, more = divmod(len(cores), len(beside))
    if not each:
        raise CannotBind(f"NUMA node {node} has {len(cores)} cores for {len(beside)} GPUs")
    first = place * each + min(place, more)
    return frozenset[int]().union(*cores[first : first + each + (place < more)])


def _of_node(node: int, machine: Processors) -> frozenset[int]:
    found = machine.of_node.get(node, frozenset()) & machine.allowed
    if not found:
        raise CannotBind(f"no processor of NUMA node {node} may be used")
    return found


def _of_socket(near: frozenset[int], machine: Processors) -> frozenset[int]:
    """Return the processors of all NUMA nodes on the socket of the lowest of these."""
    socket = machine.package[min(near)]
    usable = (cpus & machine.allowed for cpus in machine.of_node.values())
    return frozenset[int]().union(*(cpus for cpus in usable if cpus and machine.package[min(cpus)] == socket))


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> dict[int, frozenset[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), set()).add(cpu)
    return {name: frozenset(group) for name, group in groups.items()}
