"""A shard on its way back: from the host's memory to the device, in the slices in which it came.

All that lay on the device comes as one piece of its memory, of which the tensors are views until the script has taken
them over. So for a moment the device holds them twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from holdfast.node.vault.seals import Bytes
from holdfast.trainer.device.adapters import free_bytes
from holdfast.trainer.device.ring import Ring
from holdfast.trainer.vault_client.shard_layout import OnDevice, entries_of

SPARE = 2.25
"""Free memory that is asked for, in sizes of what comes: views and what becomes of them, and a quarter beside it."""

log = logging.getLogger("holdfast.trainer.checkpoint")


def upload(
    index: bytes, memory: Bytes, device: torch.device, stream: torch.Stream, ring: Callable[[], Ring]
) -> OnDevice | None:
    """Return what lay on the device, there again; the current stream waits for it. None: nothing did, or there is no
    memory for it. Then the tensors stay on the host, and whatever loads them moves them.
    """
    entries = [entry for entry in entries_of(index) if entry.is_on_device]
    if not entries:
        return None
    base = min(entry.offset for entry in entries)
    nbytes = memory.size - base
    free = free_bytes(device)
    if free is not None and free < SPARE * nbytes:
        log.info("the state is restored tensor by tensor: %d bytes of the device are free", free)
        return None
    try:
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        log.info("the state is restored tensor by tensor: %s", error)
        return None
    training = torch.accelerator.current_stream()
    stream.wait_stream(training)
    torch.accelerator.set_stream(stream)
    try:
        slots = ring()
        for begin in range(0, nbytes, slots.slot_bytes):
            end = min(begin + slots.slot_bytes, nbytes)
            slots.send(torch.from_numpy(memory[base + begin : base + end]), target[begin:end])
        # The ring's next user does not know of these copies.
        stream.synchronize()
    finally:
        torch.accelerator.set_stream(training)
    return OnDevice(base, target)
