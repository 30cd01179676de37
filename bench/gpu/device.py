"""The device that the benchmarks of this folder use, what it is, and how its time is taken."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import machine
import torch
from report import median, tell

SIMULATED = "sim"
"""The test accelerator of `tests/accelerator`: its speeds mean nothing."""
GB = 1_000_000_000
MIB = 1 << 20
NOT_ASKED = "not asked for"
LIMIT_S = 540.0
"""Parts that have not begun after so long are left out: each benchmark ends within ten minutes."""


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the flags that all benchmarks of this folder have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds: a minute or two")
    parser.add_argument(
        "--only", default="", help="parts to run, with commas; their names are in the last line's results"
    )
    parser.add_argument("--device", help="a type of torch's, or sim: the test accelerator (no figures); default: yours")
    return parser


def use(wanted: str | None) -> torch.device:
    """Make this type of accelerator the current one, and return its current device.

    Raises SystemExit with the cure: there is none.
    """
    if wanted == SIMULATED:
        from tests import accelerator
        from tests.accelerator.build import why_not

        if reason := why_not():
            raise SystemExit(reason)
        accelerator.load()
        torch.set_num_threads(1)
    if not torch.accelerator.is_available():
        raise SystemExit("torch sees no accelerator here; --device sim shows how this runs, on a simulated one")
    current = torch.accelerator.current_accelerator()
    assert current is not None
    if wanted not in (None, current.type):
        raise SystemExit(f"the accelerator of this machine is {current.type}, not {wanted}")
    return torch.device(current.type, torch.accelerator.current_device_index())


def described(device: torch.device) -> dict[str, Any]:
    """Return what a reader of the figures must know of the device and the machine."""
    module = getattr(torch, device.type)
    ask = getattr(module, "get_device_properties", None)
    properties = ask(device) if ask is not None else None
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "device": getattr(properties, "name", device.type),
        "is_simulated": device.type == SIMULATED,
        "devices": torch.accelerator.device_count(),
        "memory_gb": getattr(properties, "total_memory", 0) / GB or None,
        "runtime": torch.version.cuda or torch.version.hip,
        "numa_node": near_node(device),
        "numa_nodes": len(numa_nodes()),
        "memlock": "unlimited" if locked == resource.RLIM_INFINITY else locked,
        **machine.describe(),
    }


def in_words(it: dict[str, Any]) -> str:
    """Return the first lines of the output."""
    words = f"{it['device']}, torch {it['torch']} ({it['runtime'] or 'no runtime'}), {machine.in_words(it)}"
    if it["is_simulated"]:
        words += "\nA SIMULATED device: what follows shows that the benchmark runs, and no speed of anything."
    return words


def near_node(device: torch.device) -> int | None:
    """Return the NUMA node that a device is attached to; None: the machine does not say."""
    ask = getattr(getattr(torch, device.type), "get_device_properties", None)
    if ask is None:
        return None
    it = ask(device)
    try:
        address = f"{it.pci_domain_id:04x}:{it.pci_bus_id:02x}:{it.pci_device_id:02x}.0"
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (AttributeError, OSError, ValueError):
        return None
    return node if node >= 0 else None


def numa_nodes() -> dict[int, frozenset[int]]:
    """Return the processors of each NUMA node that has some."""
    found = {}
    for place in Path("/sys/devices/system/node").glob("node[0-9]*"):
        if cpus := _cpus((place / "cpulist").read_text()):
            found[int(place.name.removeprefix("node"))] = cpus
    return found


def _cpus(text: str) -> frozenset[int]:
    """Return the numbers of a list such as 0-3,8."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def available_bytes() -> int:
    """Return the host's memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes until the device has done it all."""
    torch.accelerator.synchronize()
    began = time.perf_counter()
    work()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


def median_s(work: Callable[[], object], runs: int) -> float:
    """Return the median of some runs, after one that does not count."""
    seconds(work)
    return median([seconds(work) for _ in range(runs)]) or 0.0


class Part(NamedTuple):
    """A part of a benchmark: rows of figures, as it finds them."""

    name: str
    heading: str
    measure: Callable[[], list[dict[str, Any]]]


class Parts:
    """Runs the parts of a benchmark while there is time. What cannot be measured here has a reason instead."""

    def __init__(self, only: str = "") -> None:
        """`only`: names of parts, with commas; "": all."""
        self._only = frozenset(filter(None, only.split(",")))
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.left_out: dict[str, str] = {}
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        return LIMIT_S - (time.monotonic() - self._began)

    def run(self, part: Part) -> None:
        if self._only and part.name not in self._only:
            self.left_out[part.name] = NOT_ASKED
            return
        if self.left_s < 0:
            self.left_out[part.name] = f"no time is left of {LIMIT_S:g} s"
            return
        tell(f"{part.heading} ...")
        try:
            self.found[part.name] = part.measure()
        except (RuntimeError, OSError, MemoryError) as error:
            # Of one part; a machine may lack what it needs, and the others are wanted all the same.
            self.left_out[part.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        if part.name in self.left_out:
            tell(f"left out: {self.left_out[part.name]}")
