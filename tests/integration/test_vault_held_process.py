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

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 500
"""Other processes start as well, and one of them may get the number."""


@contextmanager
def process_of_number(wanted: int) -> Iterator[None]:
    """A fork of this process with this number."""
    for _ in range(TRIES):
        LAST_PID.write_text(str(wanted - 1))
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        try:
            if pid == wanted:
                yield
                return
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    pytest.skip(f"process {wanted} was taken by others")


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK) or os.geteuid() != 0, reason="numbers cannot be chosen here")
def test_a_number_that_another_process_has_got_is_not_read() -> None:
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


def test_a_connection_leads_to_the_process_that_made_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert HeldProcess.at(ours).pid == os.getpid()
