"""Forks that become other processes."""

from __future__ import annotations

import ctypes
import locale
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from holdfast.node.forks import fork_child, take_streams


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_fork_that_is_ended_at_once_ends(number: signal.Signals) -> None:
    """The parent has handlers of its own, which a fork has too until it is another process."""

    def child(_: int) -> NoReturn:
        time.sleep(20)
        os._exit(0)

    before = signal.signal(number, lambda *_: None)
    try:
        pid = fork_child(child)
        os.kill(pid, number)
        _, status = os.waitpid(pid, 0)
    finally:
        signal.signal(number, before)
    assert os.waitstatus_to_exitcode(status) == -number
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_fork_ignores_a_hang_up_as_nohup_wants_it_and_no_other_signal() -> None:
    def child(_: int) -> NoReturn:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)

    ignored = (signal.SIGHUP, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        _, status = os.waitpid(fork_child(child), 0)
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def printed_by(child: Callable[[int], NoReturn]) -> bytes:
    """Return what a fork prints; it is called with the descriptor to print to."""
    read, write = os.pipe()
    pid = fork_child(lambda _: child(write))
    os.close(write)
    with os.fdopen(read, "rb") as output:
        printed = output.read()
    os.waitpid(pid, 0)
    return printed


def test_a_fork_prints_names_that_are_no_text_as_an_interpreter_does() -> None:
    """In the locale C. In others both raise an error."""

    def child(write: int) -> NoReturn:
        locale.setlocale(locale.LC_CTYPE, "C")
        take_streams(write, write)
        print(os.fsdecode(b"caf\xe9"))
        os._exit(0)

    assert printed_by(child) == b"caf\xe9\n"


def test_what_a_library_prints_by_c_appears_at_once() -> None:
    def child(write: int) -> NoReturn:
        # As where the first process has no PYTHONUNBUFFERED.
        libc = ctypes.CDLL(None)
        libc.setvbuf(
            ctypes.c_void_p.in_dll(libc, "stdout"), ctypes.create_string_buffer(4096), 0, ctypes.c_size_t(4096)
        )
        take_streams(write, write)
        libc.printf(b"NCCL INFO\n")
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    assert printed_by(child) == b"NCCL INFO\n"
