"""Requirements of faults on the machine, and their checks."""

from __future__ import annotations

import os
import shutil
from enum import StrEnum
from pathlib import Path

from holdfast.faults.cgroups import CgroupsMissing, hierarchy

_CAPABILITIES = {"cap_net_admin": 12, "cap_sys_ptrace": 19, "cap_sys_admin": 21}


class Requirement(StrEnum):
    MEMORY_CGROUP = "memory cgroup"
    CPU_CGROUP = "cpu cgroup"
    KERNEL_LOG = "kernel log"
    MOUNT = "mount"
    OVERLAY = "overlay"
    FUSE = "fuse"
    LOOP = "loop"
    PTRACE = "ptrace"
    LINKS = "links"


def lacking(need: Requirement) -> str:
    """Return why the requirement is not met, with the cure; "" if it is met."""
    match need:
        case Requirement.MEMORY_CGROUP:
            return _no_cgroup("memory")
        case Requirement.CPU_CGROUP:
            return _no_cgroup("cpu")
        case Requirement.KERNEL_LOG:
            return _not_writable("/dev/kmsg", "the kernel log")
        case Requirement.MOUNT:
            return _no_capability("cap_sys_admin", "to mount")
        case Requirement.OVERLAY:
            known = Path("/proc/filesystems").read_text().split()
            return "" if "overlay" in known else "this kernel has no overlay file system: modprobe overlay"
        case Requirement.FUSE:
            return _not_writable("/dev/fuse", "FUSE, for file systems that do not answer,")
        case Requirement.LOOP:
            if missing := [name for name in ("losetup", "mkfs.ext4") if shutil.which(name) is None]:
                return f"{' and '.join(missing)} are missing: install util-linux and e2fsprogs"
            return _not_writable("/dev/loop-control", "block devices made of files")
        case Requirement.PTRACE:
            return _no_capability("cap_sys_ptrace", "to write into the memory of ranks")
        case Requirement.LINKS:
            if shutil.which("ip") is None or shutil.which("tc") is None:
                return "the commands ip and tc are missing: install iproute2"
            return _no_capability("cap_net_admin", "to change network links")


def _no_cgroup(controller: str) -> str:
    try:
        hierarchy(controller)
    except CgroupsMissing as missing:
        return str(missing)
    return ""


def _no_capability(name: str, purpose: str) -> str:
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
    if held >> _CAPABILITIES[name] & 1:
        return ""
    return f"this process lacks {name.upper()} {purpose}: run it as root, outside of a restricted container"


def _not_writable(path: str, what: str) -> str:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        return f"{what} ({path}) cannot be written: {error.strerror}; run it as root, with that device in the container"
    return ""
