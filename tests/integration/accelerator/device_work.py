"""What children with the simulated accelerator do for test_accelerator_device.py."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from holdfast.trainer.checkpoint import RngState
from tests import accelerator


def read_an_address() -> None:
    """Read device memory as the host; the process does not survive it."""
    accelerator.load()
    ctypes.string_at(torch.ones(8, device="sim").data_ptr(), 4)


def read_by_another_process() -> int:
    """Return the error number of process_vm_readv of device memory."""

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    tensor, target = torch.ones(8, device="sim"), ctypes.create_string_buffer(32)
    torch.accelerator.synchronize()
    to, of = Piece(ctypes.addressof(target), 32), Piece(tensor.data_ptr(), 32)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.process_vm_readv(os.getpid(), ctypes.byref(to), 1, ctypes.byref(of), 1, 0) == -1
    return ctypes.get_errno()


def error_of(act: Callable[[], object]) -> str:
    """Return the type of an error and what it says; an empty string: there was none."""
    try:
        act()
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def wrong_index() -> tuple[list[str], list[float]]:
    """Return the errors of an operator with an index that is too large and of later calls; what ran after it."""
    table, index, result = torch.ones(4, 2, device="sim"), torch.tensor([9]).to("sim"), torch.zeros(1, device="sim")
    torch.accelerator.synchronize()
    calls = (
        lambda: torch.nn.functional.embedding(index, table),
        lambda: result.add_(1),
        torch.accelerator.synchronize,
        result.item,
    )
    errors = [error_of(call) for call in calls]
    accelerator.clear_error()
    return errors, result.tolist()


def events() -> dict[str, object]:
    """Return what events and streams say while a stream is held, and afterwards."""
    value, busy, idle = torch.zeros(1, device="sim"), torch.Stream("sim"), torch.Stream("sim")
    torch.accelerator.synchronize()
    current = torch.accelerator.current_stream()
    begin, end = torch.Event("sim", enable_timing=True), torch.Event("sim", enable_timing=True)
    said: dict[str, object] = {"never recorded": end.query()}
    with accelerator.held(busy):
        with busy:
            begin.record()
            value.add_(1)
            end.record()
        current.wait_event(end)
        doubled = value * 2
        said["held"] = (end.query(), busy.query(), current.query())
        # The same event, recorded again: whoever waits for the first recording still does.
        idle.record_event(end)
        end.synchronize()
        said["recorded again"] = (end.query(), current.query())
        busy.record_event(end)
    said["released"] = doubled.item()
    end.synchronize()
    said["took no time"] = 0 <= begin.elapsed_time(end) < 60_000
    said["without timing"] = error_of(lambda: torch.Event("sim").elapsed_time(end))
    return said


def freed_memory(recorded: bool) -> tuple[bool, bool]:
    """Free a tensor that another stream is to read. Return whether its memory was had again, and the read is whole."""
    other = torch.Stream("sim")
    tensor = torch.full((1000,), 3.0, device="sim")
    address = tensor.data_ptr()
    torch.accelerator.synchronize()
    with accelerator.held(other):
        with other:
            copy = tensor.clone()
        if recorded:
            tensor.record_stream(other)
        del tensor
        again = torch.empty(1000, device="sim")
        reused = again.data_ptr() == address
        torch.accelerator.current_stream().synchronize()
    torch.accelerator.synchronize()
    return reused, bool((copy == 3).all())


def taken_memory_is_nan() -> list[bool]:
    """Return whether memory that was used before is NaN when it is taken, with poison and without."""
    found = []
    for poison in (True, False):
        accelerator.poison(poison)
        torch.full((1000,), 3.0, device="sim")
        found.append(bool(torch.empty(1000, device="sim").isnan().all()))
    return found


def numbers_after_restore() -> tuple[list[str], bool]:
    """Return the generators of a checkpoint, and whether the device draws the same again once it is restored."""
    kept = pickle.loads(pickle.dumps(RngState().state_dict()))
    drawn = torch.rand(8, device="sim").tolist()
    RngState().load_state_dict(kept)
    return list(kept), torch.rand(8, device="sim").tolist() == drawn


def random_numbers() -> dict[str, bool]:
    """Return which draws are the same."""
    torch.manual_seed(3)
    first = torch.randn(50, device="sim").cpu()
    state = torch.get_device_module("sim").get_rng_state()
    second = torch.randn(50, device="sim").cpu()
    accelerator.delay(300)
    torch.manual_seed(3)
    repeated = torch.randn(50, device="sim").cpu()
    torch.get_device_module("sim").set_rng_state(state)
    continued = torch.randn(50, device="sim").cpu()
    host = torch.get_rng_state()
    torch.nn.functional.dropout(torch.ones(50, device="sim")).sum().item()
    own = torch.Generator("sim").manual_seed(3)
    return {
        "again with the seed": torch.equal(first, repeated),
        "again with the state": torch.equal(second, continued),
        "one after the other": torch.equal(first, second),
        "the host's": torch.equal(host, torch.get_rng_state()),
        "a generator of its own": torch.equal(first, torch.randn(50, device="sim", generator=own).cpu()),
    }


def recomputed_gradients() -> tuple[list[float], list[float]]:
    """Return gradients through dropout, kept and recomputed."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(5)
        x = torch.ones(64, device="sim", requires_grad=True)

        def drop(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x * x, 0.5)

        y = checkpoint(drop, x, use_reentrant=False) if recompute else drop(x)
        y.sum().backward()
        assert x.grad is not None
        found.append(x.grad.tolist())
    return found[0], found[1]


def saved_and_loaded() -> list[bool]:
    """Return whether a tensor comes back as it was, on the device, and on the CPU."""
    tensor, file = torch.randn(20, device="sim").t(), io.BytesIO()
    torch.save({"x": tensor}, file)
    there = torch.load(io.BytesIO(file.getvalue()))["x"]
    here = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")["x"]
    return [there.is_sim, torch.equal(there.cpu(), tensor.cpu()), torch.equal(here, tensor.cpu())]


def views_and_sizes() -> list[bool]:
    """Return whether operators with sizes of their own are as on the CPU."""
    host = torch.arange(24.0).reshape(4, 6)
    there = host.to("sim")
    out, out_there = torch.empty(0), torch.empty(0, device="sim")
    pairs = [
        (host.t()[1:3, ::2], there.t()[1:3, ::2]),
        (host.unfold(1, 3, 2), there.unfold(1, 3, 2)),
        (host.nonzero(), there.nonzero()),
        (host[host > 7], there[there > 7]),
        (torch.cat([host, host.t().reshape(4, 6)]), torch.cat([there, there.t().reshape(4, 6)])),
        (torch.add(host, 1, out=out), torch.add(there, 1, out=out_there)),
        (torch.view_as_complex(host.view(4, 3, 2)), torch.view_as_complex(there.view(4, 3, 2))),
        (host.clone().resize_(2, 3), there.clone().resize_(2, 3)),
        (host.bfloat16().sort().indices, there.bfloat16().sort().indices),
        (host.to(torch.float64).t(), there.to("cpu", torch.float64).t()),
    ]
    grown = there.clone()
    grown.untyped_storage().resize_(8)
    grown.untyped_storage().resize_(24 * 4)
    return [torch.equal(a, b.cpu()) for a, b in pairs] + [grown.flatten()[:2].tolist() == [0, 1]]


def numbers_that_the_host_waits_for() -> float:
    """Return a sum of which each summand is read while the streams let go of tensors that Python knew."""
    accelerator.delay(longest_us=2000)
    total, one = torch.zeros((), device="sim"), torch.ones((), device="sim")
    for _ in range(20):
        total.add_(one, alpha=-(one * one))
    return float(total)


def two_devices() -> str:
    """Return the error of an operator with one tensor here and one there."""
    return error_of(lambda: torch.ones(3, device="sim") + torch.ones(3))


def memory_in_use() -> list[int]:
    """Return bytes in use: before a tensor, with it, after it; and the most of the device that can be had."""
    torch.accelerator.empty_cache()
    used = [torch.accelerator.memory_allocated()]
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="sim")
    used.append(torch.accelerator.memory_allocated() - used[0])
    del tensor
    used.append(torch.accelerator.memory_allocated() - used[0])
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    error = error_of(lambda: torch.empty(total + 1, dtype=torch.uint8, device="sim"))
    assert error.startswith("OutOfMemoryError"), error
    return used[1:]


def used_after_a_fork() -> int:
    """Return how a forked child ends that uses the device: 0 if it was refused."""
    torch.ones(3, device="sim").sum().item()
    child = os.fork()
    if child == 0:
        error = error_of(lambda: torch.ones(3, device="sim"))
        os._exit(0 if "forked subprocess" in error else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
