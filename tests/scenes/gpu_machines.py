"""Trees of sysfs and /proc of machines with GPUs, in the form that the kernel and the driver document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.node.machine import Machine
from tests.scenes.inspected_machine import machine_at, write


class Shape(NamedTuple):
    sockets: int
    nodes_per_socket: int
    cores_per_node: int
    threads_per_core: int
    cores_per_cache: int
    gpu_nodes: Sequence[int]
    """The NUMA node of each GPU, as the kernel has it: -1 where it does not know."""


SHAPES = {
    "two sockets, eight GPUs": Shape(2, 1, 8, 2, 4, (0, 0, 0, 0, 1, 1, 1, 1)),
    "four nodes per socket, GPUs in no order": Shape(1, 4, 6, 1, 3, (3, 1, 1, 0)),
    "no NUMA": Shape(1, 1, 3, 1, 2, (-1, -1)),
}


def gpu_machine(root: Path, shape: Shape) -> Machine:
    """Return a machine of this shape. As usual the second threads of cores have the higher numbers."""
    nodes = shape.sockets * shape.nodes_per_socket
    cores = nodes * shape.cores_per_node
    files: dict[str, object] = {"sys/devices/system/node/possible": f"0-{nodes - 1}"}
    for node in range(nodes):
        first = node * shape.cores_per_node
        threads = range(shape.threads_per_core)
        spans = [f"{it * cores + first}-{it * cores + first + shape.cores_per_node - 1}" for it in threads]
        files[f"sys/devices/system/node/node{node}/cpulist"] = ",".join(spans)
        for core in range(first, first + shape.cores_per_node):
            siblings = [core + it * cores for it in threads]
            begin = first + (core - first) // shape.cores_per_cache * shape.cores_per_cache
            sharing = range(begin, min(begin + shape.cores_per_cache, first + shape.cores_per_node))
            shared = sorted(each + it * cores for each in sharing for it in threads)
            for cpu in siblings:
                files |= _processor(cpu, siblings, shared, node // shape.nodes_per_socket)
    for number, node in enumerate(shape.gpu_nodes):
        address = f"0000:{0x10 + number:02x}:00.0"
        device = f"sys/bus/pci/devices/{address}"
        files |= {f"{device}/vendor": "0x10de", f"{device}/class": "0x030200", f"{device}/numa_node": node}
        files[f"proc/driver/nvidia/gpus/{address}/information"] = f"Model:\t\t NVIDIA H100\nGPU UUID:\t {uuid(number)}"
    # The bridge beside them, and the display of the board.
    files |= {"sys/bus/pci/devices/0000:0f:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:0f:00.0/class": "0x068000"}
    files |= {"sys/bus/pci/devices/0000:02:00.0/vendor": "0x1a03", "sys/bus/pci/devices/0000:02:00.0/class": "0x030000"}
    write(root, files)
    return machine_at(root)


def uuid(number: int) -> str:
    return f"GPU-{number}f0c1a2b-3d4e-5f60-7182-93a4b5c6d7e8"


def _processor(cpu: int, siblings: Sequence[int], shared: Sequence[int], package: int) -> dict[str, object]:
    place = f"sys/devices/system/cpu/cpu{cpu}"
    files: dict[str, object] = {
        f"{place}/topology/thread_siblings_list": ",".join(map(str, siblings)),
        f"{place}/topology/physical_package_id": package,
    }
    caches = ((0, "Data", 1, siblings), (1, "Instruction", 1, siblings), (2, "Unified", 2, siblings))
    for index, kind, level, cpus in (*caches, (3, "Unified", 3, shared)):
        files[f"{place}/cache/index{index}/type"] = kind
        files[f"{place}/cache/index{index}/level"] = level
        files[f"{place}/cache/index{index}/shared_cpu_list"] = ",".join(map(str, cpus))
    return files
