"""A process made ahead: it makes its context on a rank's accelerator, and gives it up if training needs the memory.

A context belongs to the process that makes it. No fork inherits one, so it is made in the process that will be the
rank.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
import time
from pathlib import Path

import torch

from holdfast.node.frames import WireError, send
from holdfast.trainer.ahead.messages import REASON_CHARS_MAX, ContextMade, ContextRefused
from holdfast.trainer.device.adapters import free_bytes

LOOK_EVERY_S = 0.2


def hold_context(link: socket.socket, device: str, floor_bytes: int) -> None:
    """Make a context and report it; return once there is something to receive. With less than `floor_bytes` of the
    device free, or without a context, ask to be ended.
    """
    began = time.monotonic()
    try:
        use(device)
        free = free_bytes(torch.device(device))
    except Exception as error:  # noqa: BLE001 - of torch, a driver or a plugin: anything that a device can raise
        _refuse(link, f"no context: {error}")
        return
    if free is None:
        _refuse(link, "its device does not report how much memory is free")
        return
    if free >= floor_bytes:
        send(link, ContextMade(took_s=time.monotonic() - began, free_bytes=free, host_bytes=_host_bytes()))
    while not select.select([link], [], [], LOOK_EVERY_S)[0]:
        free = free_bytes(torch.device(device))
        if free is None or free < floor_bytes:
            _refuse(link, f"training needs the memory: {(free or 0) >> 20} MiB were free")
            return


def use(device: str) -> None:
    """Compute something on a device, by which its context is made, and that of its matrix library.

    The current device stays as it was: making it another one would make a context there too.
    """
    one = torch.ones(8, 8, device=device)
    torch.mm(one, one).sum().item()


def context_works(device: str) -> bool:
    """Return True if this process can still compute there; a fault of the device may have ended its context."""
    try:
        use(device)
    except Exception as error:  # noqa: BLE001 - as above
        sys.stderr.write(f"holdfast: the context that was made ahead is lost, and the rank starts without: {error}\n")
        return False
    return True


def _refuse(link: socket.socket, reason: str) -> None:
    """Ask to be ended, and wait for that, or for a plan that was sent at the same time."""
    try:
        send(link, ContextRefused(reason=reason[:REASON_CHARS_MAX]))
    except WireError:
        # The other side has sent its plan, or has ended: both are seen where that is received.
        return
    select.select([link], [], [])


def _host_bytes() -> int:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{os.getpid()}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
