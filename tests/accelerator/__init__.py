"""A simulated accelerator for tests: device `sim` of torch, which shows a wait that someone forgot.

No GPU can be counted on, and a CPU would not do: it has no streams, so nothing is ever read too early. This device runs
the CPU's kernels, each stream in a thread of its own, and behaves as CUDA does where it hurts:

* its memory cannot be read by the host: reading an address of it is a segmentation fault;
* calls return before the work is done; each task, and each slice of a copy, can be delayed at random, by a seed;
* memory that is freed is had again by the next that asks its stream, and is filled with NaN in that stream's order;
* copies with `non_blocking=True` run beside the host if the host's memory is pinned or registered (`register_host`);
* errors come late, with the operator's name, at the next synchronization; nothing runs after one (`clear_error`);
* collectives (backend `simccl`) run on a stream of their own, and `wait()` is for the stream, not for the host;
* after a fork it cannot be used.

What it does not have: a second device, CUDA graphs, inductor, convolutions, copies of conjugate views (a segmentation
fault); autocast casts nothing. `module.to("sim")`
unties weights.

Environment variables: SIM_DEVICE_BYTES sets how much memory it has; else 8 GiB, of which only what is used is taken.
SIM_CONTEXT_MS and SIM_CONTEXT_BYTES set what a process's first use of it costs; nothing without. SIM_DEVICE_BOARD names
a file: processes with the same one share the memory.

A test uses it in a process of its own, for torch has one accelerator per process and streams are threads:

    pytestmark = on_accelerator                           # tests.accelerator.children: skips where it cannot be built

    def test_something(accelerators: Accelerators) -> None:
        assert accelerators.call(work, 3) == 3            # called in a child that has the device

    def work(seed: int) -> float:
        accelerator.seed(seed)
        accelerator.delay(longest_us=500)
        return torch.ones(3, device="sim").sum().item()

A program that is no test calls `load()` itself; from then on `torch.accelerator` is this device.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from tests.accelerator.build import MODULE, built

_native: Any = None


def load() -> None:
    """Make `sim` the accelerator of this process: torch.accelerator, torch.sim, device "sim", backend "simccl"."""
    global _native
    if _native is not None:
        return
    import torch
    import torch.distributed as dist

    from tests.accelerator import device_module

    spec = importlib.util.spec_from_file_location(MODULE, built())
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    torch.utils.rename_privateuse1_backend("sim")
    spec.loader.exec_module(native)
    native.register_device()
    torch._register_device_module("sim", device_module.make(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("simccl", _process_group, devices=["sim"])
    atexit.register(native.stop)
    _native = native


def reset() -> None:
    """Set all knobs as they are at first, and forget an error."""
    clear_error()
    delay(0)
    bandwidth(0)
    slice_bytes(1 << 20)
    poison(True)
    synchronous(False)
    early_futures(False)
    seed(0)
    waited()


def seed(value: int) -> None:
    """Wait for all streams; then make their delays those of this seed, from the first on."""
    _native.seed(value)


def delay(longest_us: int, chance: float = 1.0) -> None:
    """Delay each task, and each slice of a copy, with this chance by up to so many microseconds. 0: not at all."""
    _native.delay(longest_us, chance)


def bandwidth(bytes_per_s: float) -> None:
    """Set the speed of the link, each direction by itself; all streams share it. 0: as fast as the processor copies."""
    _native.bandwidth(bytes_per_s)


def slice_bytes(nbytes: int) -> None:
    """Set the size of the slices that copies between host and device consist of."""
    _native.slice_bytes(nbytes)


def poison(on: bool) -> None:
    """Fill memory with NaN when it is taken, in the order of the stream that takes it."""
    _native.poison(on)


def synchronous(on: bool) -> None:
    """End each task before the host goes on. What fails otherwise and passes so lacks a wait."""
    _native.synchronous(on)


def early_futures(on: bool) -> None:
    """Complete futures of collectives before the collectives: a fault, for a test that it is found."""
    _native.early_futures(on)


@contextlib.contextmanager
def held(stream: Any) -> Iterator[None]:
    """Let a stream run nothing that is queued from now on until the block ends. Do not wait for the stream in it."""
    hold = _native.Hold(stream.stream_id)
    try:
        yield
    finally:
        hold.release()


def clear_error() -> None:
    """Wait for all streams, and forget an error of the device. CUDA has no such call."""
    _native.clear_error()


def waited() -> set[str]:
    """Return the operators that made the host wait since the last call, for their results' sizes depend on data."""
    return set(_native.waited())


def register_host(address: int, nbytes: int) -> None:
    """Let the device reach memory of the host while the host goes on, as cudaHostRegister does; a memfd's mapping too.

    Raises RuntimeError: it is registered in part, or not mapped for writing.
    """
    _native.register_host(address, nbytes)


def unregister_host(address: int) -> None:
    """Undo it. A copy that is still under way fails at its next slice, for nobody waited for it."""
    _native.unregister_host(address)


def _process_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    import torch.distributed as dist

    return _native.process_group(dist.ProcessGroupGloo(store, rank, size, timeout))
