"""Snapshots of a real process that changes its memory the moment it may."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from snapshot_source import pattern

from holdfast.node.vault import seals, userfaultfd
from holdfast_vault.shelf.held_process import HeldProcess, Piece, SourceLost
from holdfast_vault.shelf.memory_snapshot import BLOCK_BYTES, CopyLayout, MemorySnapshot, protect

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("snapshot_source.py")
SIZES = [1, 4096, 10 * BLOCK_BYTES + 3, 100, 3 * BLOCK_BYTES, 77_777]
OFFSETS = [0, 1, 4095, 64, 64, 8]


@pytest.fixture(autouse=True)
def write_protection() -> None:
    try:
        os.close(userfaultfd.open_descriptor())
    except userfaultfd.NotSupported as error:
        pytest.skip(str(error))


class Source:
    """The other process, and what is to be copied of it."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.link = link
        body, descriptors, _, _ = socket.recv_fds(link, 1 << 16, 1)
        told = json.loads(body)
        self.descriptor = descriptors[0]
        self.layout = CopyLayout(
            [Piece(*piece) for piece in told["pieces"]], [tuple(pages) for pages in told["protected"]]
        )
        self.nbytes = sum(SIZES)

    def snapshot(self, target: np.ndarray) -> MemorySnapshot:
        """Return a copy of its memory, which is protected."""
        held = HeldProcess(self.process.pid, os.pidfd_open(self.process.pid))
        protect(held, self.descriptor, self.layout)
        return MemorySnapshot(held, self.descriptor, self.layout, target)


@contextmanager
def source(pages: str) -> Iterator[Source]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = (
        sys.executable,
        SOURCE,
        str(theirs.fileno()),
        ",".join(map(str, SIZES)),
        ",".join(map(str, OFFSETS)),
        pages,
    )
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        ours.settimeout(60)
        found = Source(process, ours)
        yield found
        os.close(found.descriptor)
    finally:
        ours.close()
        process.kill()
        process.wait()


def expected(number: int) -> np.ndarray:
    return np.concatenate([pattern(number, size) for size in SIZES])


@pytest.mark.parametrize("pages", ["small", "huge"])
@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_written_after_the_start_is_in_the_copy(pages: str, threads: int) -> None:
    with source(pages) as running:
        for number in range(6):
            target = np.full(running.nbytes, 255, np.uint8)
            snapshot = running.snapshot(target)
            # It writes backwards through all of its memory, while the copy goes forwards.
            running.link.send(b"begun")
            hashes = snapshot.copy(threads)
            assert running.link.recv(16) == b"changed"
            assert np.array_equal(target, expected(number))
            assert hashes == seals.seal((), target).chunks


def test_writers_wait_only_for_the_copy_and_never_for_its_end() -> None:
    """All of it is overwritten before the copier has done a single block by itself: the writers pull it along."""
    with source("huge") as running:
        target = np.zeros(running.nbytes, np.uint8)
        snapshot = running.snapshot(target)
        running.link.send(b"begun")
        hashes: list[tuple[int, ...]] = []
        copier = threading.Thread(target=lambda: hashes.append(snapshot.copy()))
        copier.start()
        assert running.link.recv(16) == b"changed"
        copier.join()
        assert np.array_equal(target, expected(0))
        assert hashes == [seals.seal((), target).chunks]
        assert snapshot.writers_waited_s > 0


def test_a_source_that_dies_makes_the_copy_fail_and_hangs_nobody() -> None:
    with source("small") as running:
        snapshot = running.snapshot(np.zeros(running.nbytes, np.uint8))
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        with pytest.raises(SourceLost, match=str(running.process.pid)):
            snapshot.copy(2)


@pytest.mark.parametrize("missing", ["descriptor", "warden", "helper"])
def test_a_copy_that_cannot_be_begun_hangs_nobody(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, threads = threading.Thread.start, {"warden": 0, "helper": 1}.get(missing, 9)

    def no_descriptor(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def start_some(thread: threading.Thread) -> None:
        nonlocal threads
        if not threads:
            raise RuntimeError("can't start new thread")
        threads -= 1
        start(thread)

    with source("huge") as running:
        snapshot = running.snapshot(np.zeros(running.nbytes, np.uint8))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_some)
            if missing == "descriptor":
                patch.setattr(os, "eventfd", no_descriptor)
            with pytest.raises((OSError, RuntimeError)):
                snapshot.copy(2)
        running.link.send(b"begun")
        assert running.link.recv(16) == b"changed"


def test_writers_go_on_when_the_copier_is_gone() -> None:
    with source("small") as running:
        running.snapshot(np.zeros(running.nbytes, np.uint8))
        os.close(running.descriptor)
        running.descriptor = os.open(os.devnull, os.O_RDONLY)
        running.link.send(b"begun")
        assert running.link.recv(16) == b"changed"
