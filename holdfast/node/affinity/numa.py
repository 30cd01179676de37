"""NUMA: the node of a PCI device, and memory taken on a chosen node, by the system calls that Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterator

from holdfast.node.machine import Machine, entries, number
from holdfast.pci import pci_address

UNKNOWN = -1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_DEFAULT, _PREFERRED = 0, 1
"""Memory policies of the kernel: the nearest node; this node as long as it has any."""
_MASK_BITS = 1024

_libc = ctypes.CDLL(None, use_errno=True)

SetPolicy = Callable[[int], None]
"""Sets the policy of this thread to a preferred node; UNKNOWN: to the default. Raises OSError."""


def nodes(machine: Machine) -> tuple[int, ...]:
    """Return the NUMA nodes of the machine; none if the kernel does not list them."""
    names = (folder.name.removeprefix("node") for folder in entries(machine.sys / "devices/system/node"))
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def node_of_device(address: str, machine: Machine) -> int:
    """Return the NUMA node of the PCI device at an address of any form; UNKNOWN if there is one node, or no answer."""
    if len(nodes(machine)) < 2:
        return UNKNOWN
    wanted = pci_address(address)
    for device in entries(machine.sys / "bus/pci/devices"):
        with contextlib.suppress(ValueError):
            if pci_address(device.name) == wanted:
                found = number(device / "numa_node")
                return UNKNOWN if found is None else max(found, UNKNOWN)
    return UNKNOWN


def set_policy(node: int) -> None:
    """A `SetPolicy`."""
    call = _SET_MEMPOLICY.get(platform.machine())
    if call is None or node >= _MASK_BITS:
        raise OSError(errno.ENOSYS, f"no such node, or no known system call, on {platform.machine()}")
    mask = (ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    mode, bits = _DEFAULT, 0
    if node != UNKNOWN:
        word = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask[node // word] = 1 << node % word
        mode, bits = _PREFERRED, _MASK_BITS
    if _libc.syscall(call, mode, mask if bits else None, ctypes.c_ulong(bits)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def memory_on(node: int, policy: SetPolicy = set_policy) -> Iterator[None]:
    """Take memory that this thread touches first from a node, if that has any. UNKNOWN, or a kernel that refuses (as in
    a container): from where it would come anyway.
    """
    if node == UNKNOWN:
        yield
        return
    try:
        policy(node)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        policy(UNKNOWN)
