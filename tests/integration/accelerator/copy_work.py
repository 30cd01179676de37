"""What children with the simulated accelerator do for test_accelerator_copies.py."""

from __future__ import annotations

import mmap
import os
import time

import torch

from tests import accelerator
from tests.integration.accelerator.device_work import error_of

MIB = 1 << 20


def beside_the_host(kind: str) -> tuple[bool, bool]:
    """Copy to the host while the stream is held. Return whether the call came back before the copy, and if it is whole.

    `kind` is the host's memory: pinned, registered, or pageable.
    """
    tensor, stream = torch.arange(1000.0, device="sim"), torch.Stream("sim")
    torch.accelerator.synchronize()
    target = torch.zeros(1000, pin_memory=kind == "pinned")
    if kind == "registered":
        accelerator.register_host(target.data_ptr(), target.nbytes)
    assert target.is_pinned() == (kind != "pageable")
    if kind == "pageable":
        with stream:
            target.copy_(tensor, non_blocking=True)
        return False, torch.equal(target, torch.arange(1000.0))
    with accelerator.held(stream):
        with stream:
            target.copy_(tensor, non_blocking=True)
            done = stream.record_event()
        unread = not done.query() and not target.any()
    done.synchronize()
    if kind == "registered":
        accelerator.unregister_host(target.data_ptr())
    return bool(unread), torch.equal(target, torch.arange(1000.0))


def source_changed_while_copied() -> list[float]:
    """Return what comes to the device if the host changes pinned memory before the copy has run, and pageable."""
    found = []
    for pinned in (True, False):
        source, stream = torch.ones(1, pin_memory=pinned), torch.Stream("sim")
        target = torch.zeros(1, device="sim")
        torch.accelerator.synchronize()
        if pinned:
            with accelerator.held(stream):
                with stream:
                    target.copy_(source, non_blocking=True)
                source.fill_(2)
        else:
            with stream:
                target.copy_(source, non_blocking=True)
            source.fill_(2)
        torch.accelerator.synchronize()
        found.append(target.item())
    return found


def pinned_memory_had_again() -> tuple[bool, bool]:
    """Return whether pinned memory is had again while a copy to it has yet to run, and once it has."""
    tensor, stream = torch.ones(1000, device="sim"), torch.Stream("sim")
    torch.accelerator.synchronize()
    with accelerator.held(stream):
        target = torch.empty(1000, pin_memory=True)
        address = target.data_ptr()
        with stream:
            target.copy_(tensor, non_blocking=True)
        del target
        early = torch.empty(1000, pin_memory=True).data_ptr() == address
    stream.synchronize()
    others = [torch.empty(1000, pin_memory=True) for _ in range(4)]
    return early, any(other.data_ptr() == address for other in others)


def into_memory_of_another_mapping() -> list[object]:
    """Copy into a registered memfd; return what another mapping of it has, and errors of wrong registrations."""
    file = os.memfd_create("segment")
    os.ftruncate(file, MIB)
    here, there = mmap.mmap(file, MIB), mmap.mmap(file, MIB)
    memory = torch.frombuffer(here, dtype=torch.float32)
    address = memory.data_ptr()
    accelerator.register_host(address, MIB)
    memory[5:1005].copy_(torch.arange(1000.0, device="sim"), non_blocking=True)
    torch.accelerator.synchronize()
    found: list[object] = [torch.frombuffer(there, dtype=torch.float32)[5:1005].tolist() == list(range(1000))]
    found.append(error_of(lambda: accelerator.register_host(address + 4096, 4096)))
    accelerator.unregister_host(address)
    found.append(memory.is_pinned())
    found.append(error_of(lambda: accelerator.unregister_host(address)))
    read_only = mmap.mmap(file, MIB, prot=mmap.PROT_READ)
    view = torch.frombuffer(read_only, dtype=torch.uint8)
    found.append(error_of(lambda: accelerator.register_host(view.data_ptr(), MIB)))
    return found


def unregistered_while_copied() -> str:
    """Return the error of a copy into memory whose registration ended before the copy had run."""
    tensor, stream = torch.ones(1000, device="sim"), torch.Stream("sim")
    target = torch.zeros(1000)
    torch.accelerator.synchronize()
    accelerator.register_host(target.data_ptr(), target.nbytes)
    with accelerator.held(stream):
        with stream:
            target.copy_(tensor, non_blocking=True)
        accelerator.unregister_host(target.data_ptr())
    error = error_of(torch.accelerator.synchronize)
    accelerator.clear_error()
    return error


def seconds_over_the_link(streams: int, both_ways: bool) -> float:
    """Return how long it takes to copy 1 MiB by each of some streams, over a link of 10 MiB/s, half of them back."""
    accelerator.bandwidth(10 * MIB)
    accelerator.slice_bytes(MIB // 16)
    there = [torch.zeros(MIB, dtype=torch.uint8, device="sim") for _ in range(streams)]
    here = [torch.zeros(MIB, dtype=torch.uint8, pin_memory=True) for _ in range(streams)]
    torch.accelerator.synchronize()
    begin = time.monotonic()
    for number in range(streams):
        with torch.Stream("sim"):
            if both_ways and number % 2:
                there[number].copy_(here[number], non_blocking=True)
            else:
                here[number].copy_(there[number], non_blocking=True)
    torch.accelerator.synchronize()
    return time.monotonic() - begin


def torn_in_the_middle() -> bool:
    """Return whether a copy can have some of its slices from before a change and some from after it."""
    accelerator.bandwidth(10 * MIB)
    accelerator.slice_bytes(MIB // 16)
    tensor = torch.zeros(MIB, dtype=torch.uint8, device="sim")
    target = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    first = torch.Event("sim")
    torch.accelerator.synchronize()
    with torch.Stream("sim"):
        target[: MIB // 2].copy_(tensor[: MIB // 2], non_blocking=True)
        first.record()
        target[MIB // 2 :].copy_(tensor[MIB // 2 :], non_blocking=True)
    first.synchronize()
    tensor.fill_(1)
    torch.accelerator.synchronize()
    return bool(target.any()) and not bool(target.all())
