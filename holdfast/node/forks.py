"""Forks of a Python process that become another: its streams, its signals, and an end like an interpreter's."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import locale
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

_FIRST_OWN_DESCRIPTOR = 3
_libc = ctypes.CDLL(None, use_errno=True)
_UNBUFFERED = 2
"""`_IONBF` of stdio.h."""
_HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_LENIENT_LOCALES = ("C", "POSIX", "C.UTF-8", "C.utf8", "UTF-8")
"""Locales in which an interpreter prints names of files as they are, also those that are not UTF-8."""
EXIT_SETUP_FAILED = 70
"""Exit code of a child that could not become what it was forked for (EX_SOFTWARE); its log has the reason."""


def fork_child(child: Callable[[int], NoReturn]) -> int:
    """Fork and return the child's pid. `child` is called with the parent's pid and never returns; signals do what they
    do by default by then, those too that were sent since the fork: this process's handlers would swallow them. Only a
    hang-up stays ignored, as nohup wants it.
    """
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*_HANDLED, signal.SIGINT))
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if pid:
        return pid
    try:
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        child(parent)
    finally:
        # The child must never continue what its parent does.
        os._exit(EXIT_SETUP_FAILED)


def enter_namespaces(descriptors: Iterable[int]) -> None:
    """Enter the namespaces that the open files of `/proc/PID/ns` stand for. Raises OSError: a right is lacking."""
    for descriptor in descriptors:
        if _libc.setns(descriptor, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def take_streams(output: int, errors: int, keep: int | None = None) -> int:
    """Set stdin to /dev/null, stdout and stderr to these; close other inherited files; return `keep`'s new number."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    first = _FIRST_OWN_DESCRIPTOR
    if keep is not None:
        first = os.dup2(keep, first, inheritable=False) + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    # Unbuffered like `python -u`, as torchrun does: also what libraries print by C.
    _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, "stdout"), None, _UNBUFFERED, ctypes.c_size_t(0))
    null_input = io.FileIO(0, closefd=False)
    null_input.name = "<stdin>"
    handling = "surrogateescape" if locale.setlocale(locale.LC_CTYPE) in _LENIENT_LOCALES else "strict"
    reader = io.BufferedReader(null_input)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, encoding="utf-8", errors=handling)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text_stream(1, "<stdout>", handling)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2, "<stderr>", "backslashreplace")  # type: ignore[misc]
    return _FIRST_OWN_DESCRIPTOR


def run_module(arguments: list[str]) -> None:
    """Run what `python -m ARGUMENT...` would."""
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def run_and_end(program: Callable[[], None]) -> NoReturn:
    """Run it, and end with the exit code that `python` would have, but leave this process's objects to the kernel: to
    take them apart would copy every page that forks share.
    """
    code: Any = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # noqa: BLE001 - whatever it is ends the process
        interrupted = isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if interrupted else 1
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _text_stream(descriptor: int, name: str, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    # As the interpreter names its own: libraries print it, or compare it.
    raw.name = name
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
