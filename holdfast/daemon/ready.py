"""How a child tells its supervisor that it is ready. Every daemon imports this, so it imports next to nothing."""

import os

READY_FD_VARIABLE = "HOLDFAST_READY_FD"


def announce_ready() -> None:
    """Say that this process does its work from now on. Without a supervisor, and the second time, it does nothing.

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
