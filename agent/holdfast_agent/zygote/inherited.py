"""Attributes that children inherit from a process, read from /proc, and the code that they would import."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from importlib import metadata
from types import ModuleType

RELEASE = metadata.version("holdfast")
"""Release of Holdfast that is loaded here. An upgrade of the files on disk does not change it."""

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


def code_places() -> tuple[str, ...]:
    """Return the interpreter and the directories from which this process has its code."""
    tops = [module for name, module in list(sys.modules.items()) if "." not in name and isinstance(module, ModuleType)]
    packages = [place for module in tops for place in module.__dict__.get("__path__", ())]
    places = {sys.executable, sys.prefix, sys.base_prefix, *sys.path, *packages}
    # A link to an absolute path would lead from another process's root to ours.
    return tuple(sorted({os.path.realpath(place) for place in places if os.path.isabs(place)}))


def seen_code(pid: int, places: Iterable[str]) -> dict[str, str]:
    """Return what the process has at these places through its mounts. Raises OSError: it is gone, or has rights that we
    lack.
    """
    root = f"/proc/{pid}/root"
    os.stat(root)
    return {f"code at {place}": _file_at(root + place) for place in places}


def python() -> str:
    """Return the path of the interpreter that runs here, and its version."""
    return f"{sys.executable} {sys.version}"


def blocked_signals() -> tuple[int, ...]:
    """Return the signals that children of this thread would have blocked."""
    return tuple(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def _file_at(path: str) -> str:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "none"
    return f"{found.st_dev}:{found.st_ino}"


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
