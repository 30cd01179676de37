"""Attributes that children inherit from a process, read from /proc."""

from __future__ import annotations

import os
import signal
import sys

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
    """Return the path of the interpreter that runs here, and its version."""
    return f"{sys.executable} {sys.version}"


def blocked_signals() -> tuple[int, ...]:
    """Return the signals that children of this thread would have blocked."""
    return tuple(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
