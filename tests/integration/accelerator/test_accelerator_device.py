"""The simulated accelerator: memory that the host cannot read, late errors, events, freed memory, random numbers."""

from __future__ import annotations

import errno
import multiprocessing
import signal

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator import device_work

pytestmark = on_accelerator


def test_the_host_cannot_read_device_memory(accelerators: Accelerators) -> None:
    assert accelerators.call(device_work.read_by_another_process) == errno.EFAULT
    reader = multiprocessing.get_context("spawn").Process(target=device_work.read_an_address)
    reader.start()
    reader.join()
    assert reader.exitcode == -signal.SIGSEGV


def test_an_error_comes_at_the_next_wait_with_the_operators_name_and_nothing_runs_after_it(
    accelerators: Accelerators,
) -> None:
    errors, after = accelerators.call(device_work.wrong_index)
    assert errors[:2] == ["", ""]
    assert all("AcceleratorError: sim error: aten::" in error and "index" in error for error in errors[2:]), errors
    assert after == [0]


def test_events_are_what_a_stream_has_reached(accelerators: Accelerators) -> None:
    said = accelerators.call(device_work.events)
    assert "enable_timing" in str(said.pop("without timing"))
    assert said == {
        "never recorded": True,
        "held": (False, False, False),
        "recorded again": (True, False),
        "released": 2,
        "took no time": True,
    }


def test_freed_memory_is_had_again_at_once_unless_another_stream_was_said_to_use_it(
    accelerators: Accelerators,
) -> None:
    assert accelerators.call(device_work.freed_memory, recorded=False) == (True, False)
    assert accelerators.call(device_work.freed_memory, recorded=True) == (False, True)
    assert accelerators.call(device_work.taken_memory_is_nan) == [True, False]


def test_random_numbers_are_those_of_seed_and_state_whatever_the_streams_do(accelerators: Accelerators) -> None:
    same = accelerators.call(device_work.random_numbers)
    assert same.pop("one after the other") is False
    assert set(same.values()) == {True}, same
    assert accelerators.call(device_work.numbers_after_restore) == (["python", "numpy", "torch", "sim"], True)
    kept, recomputed = accelerators.call(device_work.recomputed_gradients)
    assert kept == recomputed
    assert set(kept) == {0, 4}


def test_operators_give_what_they_give_on_the_cpu(accelerators: Accelerators) -> None:
    assert all(accelerators.call(device_work.views_and_sizes))
    assert all(accelerators.call(device_work.saved_and_loaded))
    assert "same device" in accelerators.call(device_work.two_devices)


def test_the_host_waits_for_a_number_while_streams_let_go_of_tensors(accelerators: Accelerators) -> None:
    """It ended never: the host waited with the interpreter's lock, which a stream's thread needed."""
    assert accelerators.call(device_work.numbers_that_the_host_waits_for) == -20


def test_memory_is_counted_and_limited(accelerators: Accelerators) -> None:
    assert accelerators.call(device_work.memory_in_use) == [1 << 20, 0]


def test_a_fork_ends_the_device(accelerators: Accelerators) -> None:
    assert accelerators.call(device_work.used_after_a_fork) == 0
