"""The readiness report of a child to its supervisor. Every daemon imports it, so it imports next to nothing."""

import os

READY_FD_VARIABLE = "HOLDFAST_READY_FD"


def announce_ready() -> None:
    """Report that this process is ready; do nothing without a supervisor or the second time.

    The supervisor hands down a pipe whose number is in HOLDFAST_READY_FD (the convention of s6). Processes started
    later do not inherit it.
    """
    number = os.environ.pop(READY_FD_VARIABLE, None)
    if number is None:
        return
    fd = int(number)
    try:
        os.write(fd, b"\n")
    except BrokenPipeError:
        # The supervisor is gone; its death signal is on the way.
        return
    finally:
        os.close(fd)
