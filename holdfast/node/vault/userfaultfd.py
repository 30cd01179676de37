"""Write protection of memory pages that another process lifts: the kernel's userfaultfd(2), by its system calls.

A process registers ranges of its memory and hands the descriptor to a second process, which protects the ranges.
Threads of the first process that then write to one of their pages wait in the kernel until the second has lifted the
protection of that page. Reading goes on. If the second process ends, its descriptor closes and no thread waits any
more.

Private anonymous memory only, and Linux 5.14 or newer. Before 6.4 (`marks_absent_pages`) only pages that exist are
protected, so a range must be populated (`populate`) before all of it can be protected. The kernel refuses without
CAP_SYS_PTRACE, the right to /dev/userfaultfd or the sysctl vm.unprivileged_userfaultfd=1. (The restricted descriptor
that it would grant is of no use here: a system call that writes to a protected page would fail instead of wait.)
The right is checked when the device is opened and not when it is used, so a process may keep it over a change of user
(`keep_right`): a descriptor from it is for the memory of the process that asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import struct

_SYSCALL_X86_64 = 323
_SYSCALL_ARM64 = 282
_DEVICE = "/dev/userfaultfd"
KEPT_VARIABLE = "HOLDFAST_USERFAULTFD"
"""Number of the open device, for a program that a process with a kept right executes."""
SPARES = 8
"""Descriptors made ahead on a kernel before 6.1, which has no device: one for each time that a rank's tensors move."""

_API_VERSION = 0xAA
_FEATURE_WRITE_PROTECT = 1 << 0
_FEATURE_ABSENT_PAGES = 1 << 13
_REGISTER_WRITE_PROTECT = 1 << 1
_PROTECT = 1 << 0
_EVENT_PAGEFAULT = 0x12
_EVENT_BYTES = 32

_MADV_POPULATE_READ = 22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _ioc(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _API_VERSION << 8 | number


_READ_WRITE = 3
_NEW = _API_VERSION << 8  # USERFAULTFD_IOC_NEW of the device: no argument
_API = _ioc(_READ_WRITE, 0x3F, 24)
_REGISTER = _ioc(_READ_WRITE, 0x00, 32)
_WRITE_PROTECT = _ioc(_READ_WRITE, 0x06, 24)


_kept: int | None = None
_spares: list[int] = []


def keep_right() -> None:
    """Keep this process's right to `open_descriptor` when it changes its user: on a kernel before 6.1 a few times, and
    for this process alone. Without the right nothing changes.
    """
    global _kept
    try:
        _kept = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        with contextlib.suppress(NotSupported):
            while len(_spares) < SPARES:
                _spares.append(_new_descriptor())


def pass_right_on() -> dict[str, str]:
    """Let the program that this process executes next keep the right too. Return the variables that it needs."""
    if _kept is None:
        return {}
    os.set_inheritable(_kept, True)
    return {KEPT_VARIABLE: str(_kept)}


class NotSupported(RuntimeError):
    """This kernel, or this process's rights, do not allow it; the message names the cause."""


def open_descriptor() -> int:
    """Return a descriptor for this process's memory, close-on-exec and non-blocking. Raises NotSupported."""
    absent = _FEATURE_ABSENT_PAGES if marks_absent_pages() else 0
    return _agreed(_FEATURE_WRITE_PROTECT | absent)[0]


@functools.cache
def marks_absent_pages() -> bool:
    """Return True if `protect` also makes the first writer to a page wait that has no memory yet, or none any more.
    Raises NotSupported: nothing can be protected.
    """
    descriptor, features = _agreed(0)
    os.close(descriptor)
    return bool(features & _FEATURE_ABSENT_PAGES)


def _agreed(features: int) -> tuple[int, int]:
    """Return a descriptor with these features, and all that the kernel has."""
    descriptor = _new_descriptor()
    request = bytearray(struct.pack("QQQ", _API_VERSION, features, 0))
    try:
        fcntl.ioctl(descriptor, _API, request)
    except OSError as error:
        os.close(descriptor)
        raise NotSupported(f"this kernel has no write protection by userfaultfd: {error.strerror}") from error
    return descriptor, struct.unpack("QQQ", request)[1]


def _new_descriptor() -> int:
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    number = _SYSCALL_ARM64 if os.uname().machine == "aarch64" else _SYSCALL_X86_64
    descriptor = _libc.syscall(ctypes.c_long(number), ctypes.c_int(flags))
    if descriptor >= 0:
        return int(descriptor)
    refusal = ctypes.get_errno()
    if refusal == errno.EPERM:
        try:
            return _from_device(flags)
        except OSError as error:
            refusal = error.errno or refusal
        if _spares:
            return _spares.pop()
    raise NotSupported(
        f"userfaultfd: {os.strerror(refusal)}; run as root or with CAP_SYS_PTRACE, allow {_DEVICE}, or set "
        "vm.unprivileged_userfaultfd=1"
    )


def _from_device(flags: int) -> int:
    passed_on = os.environ.get(KEPT_VARIABLE, "")
    kept = int(passed_on) if passed_on.isdecimal() else _kept
    if kept is not None:
        with contextlib.suppress(OSError):
            return fcntl.ioctl(kept, _NEW, flags)
    device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(device, _NEW, flags)
    finally:
        os.close(device)


def register(descriptor: int, address: int, nbytes: int) -> None:
    """Make a page-aligned range of this process's private anonymous memory one that can be protected. Raises
    NotSupported: the range is of another kind (a mapped file, shared memory).
    """
    try:
        fcntl.ioctl(descriptor, _REGISTER, bytearray(struct.pack("QQQQ", address, nbytes, _REGISTER_WRITE_PROTECT, 0)))
    except OSError as error:
        raise NotSupported(
            f"memory at {address:#x} ({nbytes} bytes) cannot be write-protected: {error.strerror}"
        ) from error


def populate(address: int, nbytes: int) -> None:
    """Have a page of zeros wherever this process's range has none: without `marks_absent_pages`, before each `protect`.
    Raises NotSupported: a kernel before 5.14, or the range is gone.
    """
    if _libc.madvise(address, nbytes, _MADV_POPULATE_READ) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotSupported(f"memory at {address:#x} ({nbytes} bytes) cannot be populated: {reason}")


def protect(descriptor: int, address: int, nbytes: int) -> None:
    """Make every writer to the range wait. About 0.1 ms for a GB of huge pages, 100 ms of small ones. Raises OSError:
    ENOENT: it is not registered (any more); ESRCH: the process is gone.
    """
    fcntl.ioctl(descriptor, _WRITE_PROTECT, bytearray(struct.pack("QQQ", address, nbytes, _PROTECT)))


def release(descriptor: int, address: int, nbytes: int) -> None:
    """Let writers to the range go on; memory that was given back meanwhile needs no release."""
    try:
        fcntl.ioctl(descriptor, _WRITE_PROTECT, bytearray(struct.pack("QQQ", address, nbytes, 0)))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH):
            raise


def waiting_writers(descriptor: int) -> list[int]:
    """Return the addresses that threads wait to write to."""
    try:
        events = os.read(descriptor, 64 * _EVENT_BYTES)
    except BlockingIOError:
        return []
    found: list[int] = []
    for offset in range(0, len(events) - _EVENT_BYTES + 1, _EVENT_BYTES):
        kind, address = struct.unpack_from("=B15xQ", events, offset)
        if kind == _EVENT_PAGEFAULT:
            found.append(address)
    return found
