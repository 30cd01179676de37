"""A connection over which a rank fills segments, and the vault at its other end, both in this process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from holdfast.node.frames import WireError, receive, send
from holdfast.node.vault.messages import (
    Abandon,
    Answer,
    Done,
    Fill,
    Filled,
    Fills,
    Lay,
    Refused,
    Request,
    Room,
    SealedStep,
    ShardName,
    answers,
)
from holdfast.node.vault.mmap_file import map_file
from holdfast.node.vault.seals import CHUNK_BYTES, Bytes, check
from holdfast_vault.limits import VaultLimits
from holdfast_vault.local.session import LocalSession
from holdfast_vault.node_vault import NodeVault
from holdfast_vault.shelf.shelf import Shelf

NAME = ShardName(job="job", submitted_ms=1, world_size=1, rank=0)
NBYTES = CHUNK_BYTES + 4096


class Rank:
    def __init__(self, link: socket.socket) -> None:
        self.link = link
        assert self.ask(Fills(name=NAME, generation=1)) == Done()
        assert self.ask(Lay(nbytes=NBYTES, index=b"index", pieces=())) == Done()

    def ask(self, request: Request) -> Answer:
        send(self.link, request)
        return receive(self.link, answers)[0]

    def begin(self, step: int) -> tuple[Room, Bytes, int]:
        """Return the vault's answer, the memory to fill and its inode."""
        send(self.link, Fill(step=step, objects=b"objects"))
        room, descriptor = receive(self.link, answers)
        assert isinstance(room, Room) and descriptor is not None
        file = os.fstat(descriptor).st_ino
        memory = map_file(descriptor, NBYTES, private=False)
        os.close(descriptor)
        return room, memory, file

    def keep(self, step: int) -> tuple[Room, int]:
        room, memory, file = self.begin(step)
        memory[:] = step
        send(self.link, Filled(up_to=CHUNK_BYTES + 1))
        assert self.ask(Filled(up_to=NBYTES)) == Done()
        return room, file


@contextmanager
def node_with(directory: Path, limits: VaultLimits) -> Iterator[NodeVault]:
    it = NodeVault(directory, "127.0.0.1", limits)
    yield it
    it.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeVault]:
    with node_with(tmp_path, VaultLimits()) as it:
        yield it


@contextmanager
def rank(node: NodeVault) -> Iterator[Rank]:
    """A rank that has ended when the block has, and that the vault is through with."""
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=LocalSession(theirs, node, copy_threads=1).run)
    serving.start()
    try:
        yield Rank(ours)
    finally:
        ours.close()
        serving.join(30)
        assert not serving.is_alive()


def shelf_of(node: NodeVault) -> Shelf:
    return node.join(NAME)


def steps_of(node: NodeVault) -> list[int]:
    with shelf_of(node).turn:
        return [each.step for each in shelf_of(node).steps()]


def test_a_step_is_sealed_when_all_of_it_has_come_and_is_what_the_rank_wrote(node: NodeVault) -> None:
    with rank(node) as it:
        first, _ = it.keep(1)
        second, _ = it.keep(2)
    assert steps_of(node) == [2, 1]
    assert first.waits and not second.waits
    with shelf_of(node).holding(SealedStep(generation=1, step=2)) as held:
        assert held is not None
        check(held[1].seal, (b"index", b"objects"), np.full(NBYTES, 2, np.uint8), "step 2")


def test_a_rank_that_ends_before_its_end_leaves_the_steps_before_and_its_memory_is_never_used_again(
    node: NodeVault,
) -> None:
    with rank(node) as it:
        it.keep(1)
        _, _, file = it.begin(2)
        send(it.link, Filled(up_to=NBYTES - 1))
    assert steps_of(node) == [1]
    assert file not in shelf_of(node).files()
    with rank(node) as it:
        it.keep(3)
        it.keep(4)
        assert {it.keep(5)[1], it.keep(6)[1]}.isdisjoint({file})


def test_a_rank_that_ends_behind_its_last_byte_has_kept_the_step(node: NodeVault) -> None:
    with rank(node) as it:
        _, memory, _ = it.begin(1)
        memory[:] = 1
        send(it.link, Filled(up_to=NBYTES))
    assert steps_of(node) == [1]


def test_what_a_rank_gives_up_is_not_there_and_its_memory_serves_the_next_step(node: NodeVault) -> None:
    with rank(node) as it:
        _, _, file = it.begin(1)
        send(it.link, Filled(up_to=5))
        assert it.ask(Abandon()) == Done()
        assert steps_of(node) == []
        assert it.keep(2)[1] == file
    assert steps_of(node) == [2]


def test_each_answer_names_all_memory_that_a_rank_may_get(node: NodeVault) -> None:
    with rank(node) as it:
        for step in range(1, 8):
            room, file = it.keep(step)
            assert file in room.files


@pytest.mark.parametrize("wrong", [Filled(up_to=1), Filled(up_to=NBYTES + 1), Fill(step=2, objects=b""), Done()])
def test_a_rank_that_breaks_the_protocol_loses_its_connection_and_the_step(node: NodeVault, wrong: Request) -> None:
    with rank(node) as it:
        it.begin(1)
        send(it.link, Filled(up_to=2))
        send(it.link, wrong)
        with pytest.raises(WireError):
            receive(it.link, answers)
    assert steps_of(node) == []


def test_without_memory_the_step_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with node_with(tmp_path, VaultLimits(memory_bytes=NBYTES // 2)) as node, rank(node) as it:
        for step in (1, 2):
            answer = it.ask(Fill(step=step, objects=b""))
            assert isinstance(answer, Refused) and "limit" in answer.reason
        assert steps_of(node) == []


def test_memory_is_taken_near_the_device_that_the_rank_names(node: NodeVault) -> None:
    with rank(node) as it:
        assert it.ask(Lay(nbytes=NBYTES, index=b"index", pieces=(), numa_node=0)) == Done()
        it.keep(1)
        assert shelf_of(node).numa_node == 0
    assert steps_of(node) == [1]
