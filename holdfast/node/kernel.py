"""The few Linux calls that Python does not offer, and what /proc shows of processes."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_KEYCTL = {"x86_64": 250, "aarch64": 219}
"""The number of the call by architecture; C libraries have no function for it."""
_JOIN_SESSION_KEYRING = 1
_SO_PEERPIDFD = 77
"""Socket option that returns a pidfd of the process that connected, also if it has ended; since Linux 6.5."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent (pid from before the fork) ends, or now if it has ended."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def become_subreaper() -> None:
    """Take over the descendants whose parents end, instead of losing sight of them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def cease_as_subreaper() -> None:
    """Leave descendants whose parents end to the next process above that takes them over."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def give_up_new_privileges() -> None:
    """Make setuid programs and file capabilities powerless for this process and its descendants."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def leave_session_keyring() -> None:
    """Take a new, empty session keyring. The one of a login is inherited through any change of user, with the keys in
    it: Kerberos tickets, passwords of mounts. Where the kernel or a container has no keyrings there is none to leave.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)


def allow_tracing() -> None:
    """Let processes of the same user, and root, read this process's memory and its files in /proc."""
    _prctl(_PR_SET_DUMPABLE, 1)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def set_memory_map(prctl_mm_map: bytes) -> None:
    """Set where the kernel finds what /proc shows of this process; the layout is that of struct prctl_mm_map."""
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, prctl_mm_map, len(prctl_mm_map), 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_MM_MAP): {os.strerror(number)}")


def thread_count() -> int:
    """Return the number of threads this process has, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def own_children() -> list[int]:
    """Return the pids of this process's children, zombies included. Exact while none ends during the call."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        me = os.getpid()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent_of(pid) == me]


def is_stopped(pid: int) -> bool:
    """Return True if the process is stopped (SIGSTOP or a tracer): it then heeds no signal but SIGKILL."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] in ("T", "t")


def is_suspended(pid: int) -> bool:
    """Return True if a signal has stopped the process; not if a debugger has."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] == "T"


def ignores(pid: int, number: signal.Signals) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigIgn:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def started_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, None if it is gone or a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def peer_pidfd(link: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that connected; `pid` is its number. Raises ProcessLookupError: it has ended."""
    try:
        return link.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise ProcessLookupError(error.errno, f"process {pid} has ended") from error
    return os.pidfd_open(pid)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on (field 3 is index 0), None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name is in parentheses and may itself contain spaces and parentheses.
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _parent_of(pid: int) -> int | None:
    fields = stat_fields(pid)
    return None if fields is None else int(fields[1])
