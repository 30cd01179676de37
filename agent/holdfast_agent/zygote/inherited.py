"""Attributes that children inherit from a process, read from /proc, and the arguments and variables that `ps` shows.

A fork that becomes another program without `exec` would be shown with those of its parent. They lie in the memory of
the process, at places that the kernel fixed at `exec`, so it writes its own there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

_STATUS = frozenset(
    {
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
        "SigIgn",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "Cpus_allowed",
        "Mems_allowed",
    }
)
_ARGUMENTS, _ENVIRONMENT = slice(45, 47), slice(47, 49)
"""Fields of /proc/PID/stat with the begin and end addresses of both, counted from the state on."""


class NoRoom(RuntimeError):
    """The memory that the kernel shows as arguments or environment is too small."""


def inherited(pid: int) -> dict[str, str]:
    """Return what children of the process would inherit. Raises OSError: it is gone, or has rights that we lack."""
    proc = f"/proc/{pid}"
    found = {
        "cgroup": _text(f"{proc}/cgroup"),
        "OOM score": _text(f"{proc}/oom_score_adj"),
        "priority": str(os.getpriority(os.PRIO_PROCESS, pid)),
        "scheduler": str(os.sched_getscheduler(pid)),
    }
    for name in os.listdir(f"{proc}/ns"):
        found[f"namespace {name}"] = os.readlink(f"{proc}/ns/{name}")
    root = os.stat(f"{proc}/root")
    found["root"] = f"{root.st_dev}:{root.st_ino}"
    for line in _text(f"{proc}/status").splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS:
            found[name] = value.strip()
    for line in _text(f"{proc}/limits").splitlines()[1:]:
        found[line[:25].strip()] = line[25:].strip()
    return found


def python() -> str:
    """Return which interpreter runs here, and its version."""
    return f"{sys.executable} {sys.version}"


def blocked_signals() -> tuple[int, ...]:
    """Return the signals that children of this thread would have blocked."""
    return tuple(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))


class Shown(NamedTuple):
    """Memory of this process that the kernel shows as its arguments or environment, and new content for it."""

    begin: int
    end: int
    block: bytes


def fit(arguments: Sequence[bytes], environment: Sequence[bytes]) -> tuple[Shown, ...]:
    """Place arguments and variables where `exec` put those of this process. Raises NoRoom if they do not fit."""
    fields = _text("/proc/self/stat").rpartition(")")[2].split()
    placed = []
    for strings, place in ((arguments, _ARGUMENTS), (environment, _ENVIRONMENT)):
        begin, end = map(int, fields[place])
        shown = Shown(begin, end, b"".join(string + b"\0" for string in strings))
        if len(shown.block) > end - begin:
            raise NoRoom(f"its arguments or variables need {len(shown.block)} bytes where there are {end - begin}")
        placed.append(shown)
    return tuple(placed)


def show(placed: Sequence[Shown]) -> None:
    """Have `ps` and /proc show these arguments and variables."""
    for begin, end, block in placed:
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, block, len(block))


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
