"""Training held inside a rank, without a restart (GREYHOUND §4.3): it waits where it would go on, and then does.

All ranks of a job are held at the end of the same step, so none waits in a collective for another that is held. The
wait ends when the agent ends it, at the moment that was given with it, and after `HELD_MAX_S` in any case.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from holdfast.node.proc.processor_waits import ProcessorWaits, own_waits
from holdfast.trainer.phases import binding

if TYPE_CHECKING:
    from holdfast.trainer.hooks.ring_writer import RingWriter

HELD_MAX_S = 60.0
POLL_S = 0.002
SIZE_CPU, SIZE_GPU = 256, 4096
PRODUCTS_MIN = 3
READINGS = 3
"""Number of readings of the processor waits; the one that took least time is used."""

_one_at_a_time = threading.Lock()


def wait_if_held() -> None:
    """Hold training here if that is ordered and due."""
    ring, ledger = binding.ring, binding.ledger
    if ring is None or ledger is None or not ring.hold_wanted or ledger.step < ring.hold_wanted_after:
        return
    if not _one_at_a_time.acquire(blocking=False):
        return
    try:
        number = ring.hold_wanted
        give_up_ns = time.monotonic_ns() + int(HELD_MAX_S * 1e9)
        before = ledger.enter_phase("held")
        ring.held(number)
        try:
            while ring.hold_wanted == number and time.monotonic_ns() < min(ring.hold_until_ns, give_up_ns):
                if duration_ns := ring.take_product_wanted():
                    _multiply(ring, min(duration_ns, ring.hold_until_ns - time.monotonic_ns()), number)
                time.sleep(POLL_S)
        finally:
            ring.held_no_more(number)
            ledger.enter_phase(before)
    finally:
        _one_at_a_time.release()


def _multiply(ring: RingWriter, duration_ns: int, number: int) -> None:
    # Its own memory may fill the device: the test is given up then, and training goes on as if it had not been.
    with contextlib.suppress(RuntimeError, MemoryError):
        ring.product_took(*_product_ns(duration_ns), number)


def _product_ns(duration_ns: int) -> tuple[int, int]:
    """Return the mean ns of a matrix product on this rank's device, and for how many of these a processor was lacking.

    The numbers are ones: the generators of random numbers stay as they are. Raises RuntimeError when the device has no
    memory left for them, or is at fault.
    """
    import torch

    is_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
    size = SIZE_GPU if is_gpu else SIZE_CPU
    with torch.no_grad():
        left, out = torch.ones((size, size), device=device), torch.empty((size, size), device=device)
        torch.mm(left, left, out=out)
        _settle(torch, is_gpu=is_gpu)
        of_all = torch.get_num_threads() > 1
        (began, before), done = _waits_now(of_all=of_all), 0
        while time.monotonic_ns() - began < duration_ns or done < PRODUCTS_MIN:
            torch.mm(left, left, out=out)
            _settle(torch, is_gpu=is_gpu)
            done += 1
        ended, after = _waits_now(of_all=of_all)
    took = ended - began
    return max(1, took // done), min(took, after.since(before)) // done


def _waits_now(*, of_all: bool) -> tuple[int, ProcessorWaits]:
    """Return a time, and the waits up to it. A wait during the reading would be in one, and not in the other."""
    readings: list[tuple[int, int, ProcessorWaits]] = []
    for _ in range(READINGS):
        began = time.monotonic_ns()
        waits = own_waits(of_all=of_all)
        ended = time.monotonic_ns()
        readings.append((ended - began, ended, waits))
    _, ended, waits = min(readings, key=lambda reading: reading[0])
    return ended, waits


def _settle(torch: Any, *, is_gpu: bool) -> None:
    if is_gpu:
        torch.cuda.synchronize()
