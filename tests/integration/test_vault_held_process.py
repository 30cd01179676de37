"""The vault reads the memory of the process that connected, and of no other one that gets its number later."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from holdfast_vault.shelf.held_process import HeldProcess, Piece, SourceLost

pytestmark = pytest.mark.integration

HERE = Path(__file__)
WHERE_NUMBERS_CAN_BE_CHOSEN = ("unshare", "--pid", "--fork", "--mount-proc")
"""In a namespace of its own: numbers that the machine gave again would be those of processes of other tests."""


@pytest.mark.skipif(os.geteuid() != 0, reason="numbers cannot be chosen here")
def test_a_number_that_another_process_has_got_is_not_read() -> None:
    if subprocess.run((*WHERE_NUMBERS_CAN_BE_CHOSEN, "true"), capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    done = subprocess.run(
        (*WHERE_NUMBERS_CAN_BE_CHOSEN, sys.executable, str(HERE)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _read_by_a_number_given_twice() -> None:
    secret, target = np.full(4096, 7, np.uint8), np.zeros(4096, np.uint8)
    pieces = [Piece(secret.ctypes.data, secret.nbytes, 0)]
    rank = subprocess.Popen((sys.executable, "-c", "import signal; signal.pause()"))
    source = HeldProcess(rank.pid, os.pidfd_open(rank.pid))
    rank.kill()
    rank.wait()
    with process_of_number(rank.pid):
        with pytest.raises(SourceLost, match="has ended"):
            source.read(pieces, target)
        assert not target.any()
        HeldProcess(rank.pid, os.pidfd_open(rank.pid)).read(pieces, target)
        assert (target == secret).all(), "it would have been read by its number"


@contextmanager
def process_of_number(wanted: int) -> Iterator[None]:
    """A fork of this process with this number."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1))
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    try:
        assert pid == wanted
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_connection_leads_to_the_process_that_made_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert HeldProcess.at(ours).pid == os.getpid()


if __name__ == "__main__":
    _read_by_a_number_given_twice()
