"""Agents that differ from their nursery, as forks of one process: `nursery_agents.py STATE_DIR CASE...`

Each asks for a zygote; one JSON line per case is the result: pid and parent of the zygote, or why there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.node.kernel import own_children
from holdfast_agent.companions import nursery_link
from holdfast_agent.zygote import inherited

CLONE_NEWUTS, CLONE_NEWNET, CLONE_NEWNS = 0x04000000, 0x40000000, 0x00020000


def unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        raise PermissionError(os.strerror(ctypes.get_errno()))


def another_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def another_mask() -> None:
    os.umask(os.umask(0) ^ 0o020)


def fewer_processors() -> None:
    all_of_them = os.sched_getaffinity(0)
    if len(all_of_them) == 1:
        raise PermissionError("it has one processor")
    os.sched_setaffinity(0, {min(all_of_them)})


def another_score() -> None:
    place = Path("/proc/self/oom_score_adj")
    place.write_text(str(int(place.read_text()) + 1))


def another_cgroup() -> None:
    """Where this machine lets us: a group beside or below ours."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup", controllers.split(",")[0], path.lstrip("/"), f"holdfast-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return
    raise PermissionError("no control group can be made")


def leave_cgroup() -> None:
    """Undo `another_cgroup`."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup", controllers.split(",")[0], path.lstrip("/"))
        if group.name == f"holdfast-test-{os.getpid()}":
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def another_torch() -> None:
    """Where this process finds torch, mount another directory, which only it sees."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.submodule_search_locations
    unshare(CLONE_NEWNS)
    for arguments in (("--make-rslave", "/"), ("--bind", sys.argv[1], found.submodule_search_locations[0])):
        if subprocess.run(("mount", *arguments), capture_output=True, check=False).returncode:
            raise PermissionError("no mount")


def another_release() -> None:
    inherited.RELEASE = "0.0.1"


CASES: dict[str, Callable[[], object]] = {
    "same": lambda: None,
    "variable": lambda: os.environ.update(OMP_NUM_THREADS="7"),
    "preload": lambda: os.environ.update(LD_PRELOAD="/lib/nothing.so"),
    "limit": another_limit,
    "umask": another_mask,
    "directory": lambda: os.chdir("/proc"),
    "priority": lambda: os.nice(1),
    "processors": fewer_processors,
    "oom": another_score,
    "ignored": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "long variable": lambda: os.environ.update(HOLDFAST_LONG_ONE="x" * 20_000),
    "interface": lambda: os.environ.update(GLOO_SOCKET_IFNAME="eth0"),
    "network": lambda: unshare(CLONE_NEWNET),
    "mounts": lambda: unshare(CLONE_NEWNS),
    "host name": lambda: unshare(CLONE_NEWUTS),
    "cgroup": another_cgroup,
    "code": another_torch,
    "release": another_release,
}


async def ask(directory: Path) -> dict[str, object]:
    path = Path(os.environ["HOLDFAST_NURSERY"])
    try:
        zygote = await nursery_link.ask(path, directory, "127.0.0.1", directory / "zygote.log")
    except (OSError, nursery_link.NoBirth) as error:
        return {"reason": str(error)}
    place = Path(f"/proc/{zygote.pid}")
    seen = {"namespaces": namespaces(place), "directory": os.readlink(place / "cwd")}
    own = {"agents_namespaces": namespaces(Path("/proc/self")), "agents_directory": os.getcwd()}
    parent = int(Path(f"/proc/{zygote.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(zygote.pid, signal.SIGKILL)
    await zygote.ended()
    return {"pid": zygote.pid, "parent": parent, "mine": zygote.pid in own_children(), **seen, **own}


def namespaces(process: Path) -> list[str]:
    return [os.readlink(process / "ns" / name) for name in ("mnt", "net")]


def run(case: str, directory: Path) -> dict[str, object]:
    directory.mkdir()
    try:
        CASES[case]()
    except OSError as error:
        return {"missing": f"this machine does not permit it: {error}"}
    try:
        return asyncio.run(ask(directory))
    finally:
        if case == "cgroup":
            leave_cgroup()


if __name__ == "__main__":
    for number, case in enumerate(sys.argv[2:]):
        pid = os.fork()
        if pid == 0:
            print(json.dumps({"case": case} | run(case, Path(sys.argv[1], str(number)))), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
