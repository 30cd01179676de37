"""The machine that figures were taken on, and how busy it was."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe() -> dict[str, object]:
    """Cores, processor, memory and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def in_words(machine: dict[str, object]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}"
    )


def load() -> float:
    """Runnable processes, averaged by the kernel over the last minute; the benchmark's own are among them."""
    return round(os.getloadavg()[0], 2)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def open_files(pid: int) -> int:
    """Return the number of files that a process holds open; 0 once it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, without its children; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All processes below a process, parents before their children."""
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
