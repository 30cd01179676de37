"""Memory of the vault comes from the NUMA node of the device that fills it, where there are several."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path

import pytest

from holdfast.node.affinity import numa
from holdfast_vault.shelf.segments import Segment
from holdfast_vault.shelf.shelf import Shelf
from tests.scenes.gpu_machines import SHAPES, gpu_machine

_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
PREFERRED = 1


def policy() -> int:
    """Return this thread's policy, as the kernel has it."""
    found = ctypes.c_int(-1)
    call = _GET_MEMPOLICY[platform.machine()]
    assert ctypes.CDLL(None).syscall(call, ctypes.byref(found), None, ctypes.c_ulong(0), None, 0) == 0
    return found.value


@pytest.fixture
def kernel_lets_us() -> None:
    try:
        numa.set_policy(0)
        numa.set_policy(numa.UNKNOWN)
    except OSError as error:
        pytest.skip(f"no memory policy can be set here: {error.strerror}")


def test_the_node_of_a_device_is_the_kernels(tmp_path: Path) -> None:
    machine = gpu_machine(tmp_path / "two", SHAPES["two sockets, eight GPUs"])
    assert numa.nodes(machine) == (0, 1)
    found = [numa.node_of_device(f"00000000:{0x10 + number:02X}:00.0", machine) for number in range(8)]
    assert found == [0, 0, 0, 0, 1, 1, 1, 1]
    assert numa.node_of_device("0000:99:00", machine) == numa.UNKNOWN
    alone = gpu_machine(tmp_path / "one", SHAPES["no NUMA"])
    assert numa.node_of_device("0000:10:00", alone) == numa.UNKNOWN


@pytest.mark.usefixtures("kernel_lets_us")
def test_segments_are_made_with_the_policy_of_their_rank_and_it_ends_with_that() -> None:
    seen: list[int] = []

    def make(name: str, nbytes: int, absent: frozenset[int], *, is_fresh: bool) -> Segment:
        seen.append(policy())
        return Segment(name, nbytes, absent, is_fresh=is_fresh)

    shelf = Shelf("a shelf", make)
    shelf.claim(5)
    shelf.numa_node = 0
    shelf.stock(5)
    assert seen[0] == policy() == 0
    assert set(seen[1:]) == {PREFERRED}


def test_a_kernel_that_refuses_leaves_memory_where_it_would_be() -> None:
    asked: list[int] = []

    def refuse(node: int) -> None:
        asked.append(node)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with numa.memory_on(1, refuse):
        asked.append(99)
    with numa.memory_on(numa.UNKNOWN, refuse):
        asked.append(99)
    # What a rank names is not believed.
    with numa.memory_on(1 << 40), numa.memory_on(1000):
        asked.append(99)
    assert asked == [1, 99, 99, 99]
