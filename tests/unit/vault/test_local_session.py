"""One rank's connection to its vault, both in this process."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.node.frames import receive, send
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.vault.messages import (
    Answer,
    AskCertified,
    AskSteps,
    Certified,
    Done,
    Join,
    KeepOnly,
    Lay,
    Refused,
    Request,
    Save,
    SealedStep,
    ShardName,
    Steps,
    answers,
)
from holdfast.node.vault.seals import seal
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault import interruptions
from holdfast_vault.assignments import Assignment, JobId
from holdfast_vault.limits import VaultLimits
from holdfast_vault.local import session as local_session
from holdfast_vault.local.session import LocalSession
from holdfast_vault.node_vault import NodeVault
from holdfast_vault.shelf.segments import SealedContents, Segment

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)


class Rank:
    """Asks, and reads the answer."""

    def __init__(self, link: socket.socket, generation: int, ledger: str) -> None:
        self._link = link
        self._data = np.arange(1 << 16)
        assert self.ask(Join(name=NAME, generation=generation, pid=os.getpid(), ledger=ledger)) == Done()
        nbytes = self._data.nbytes
        assert self.ask(Lay(nbytes=nbytes, index=b"", pieces=((self._data.ctypes.data, nbytes, 0),))) == Done()

    def ask(self, request: Request) -> Answer:
        send(self._link, request)
        return receive(self._link, answers)[0]

    def kept(self) -> Steps:
        answer = self.ask(AskSteps())
        assert isinstance(answer, Steps)
        return answer

    def steps(self) -> tuple[SealedStep, ...]:
        return self.kept().sealed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeVault]:
    it = NodeVault(tmp_path, "127.0.0.1", VaultLimits())
    yield it
    it.close()


@contextmanager
def rank(node: NodeVault, generation: int = 1, ledger: str = "") -> Iterator[Rank]:
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=LocalSession(theirs, node, copy_threads=1).run)
    serving.start()
    with ours:
        ours.settimeout(30)
        yield Rank(ours, generation, ledger)
    serving.join()


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def test_a_vault_knows_how_far_its_rank_came_and_not_from_copies(node: NodeVault) -> None:
    with rank(node) as asking:
        for step in (1, 2):
            assert asking.ask(Save(step=step, objects=b"")) == Done()
        assert asking.kept().newest_made == at(2)
        shelf = node.join(NAME)
        copy = shelf.claim(shelf.whole()[0].nbytes)
        assert shelf.seal(copy, SealedContents(sealed=at(9), index=b"", objects=b"", seal=seal((), copy.memory)))
        assert (asking.steps()[0], asking.kept().newest_made) == (at(9), at(2))


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), MemoryError(), OSError(12, "no memory")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_save_that_fails_holds_up_none_that_comes_after_it(
    node: NodeVault, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rank(node) as asking:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> Any:
                raise failure

            patch.setattr(local_session, "seal", fail)
            assert asking.ask(Save(step=1, objects=b"")) == Done()
            # Answered when that save is over.
            assert asking.steps() == ()
            assert not any(segment.is_filling for segment in node._shelves.of(NAME)._segments)
        assert asking.ask(Save(step=2, objects=b"")) == Done()
        assert asking.steps() == (at(2),)


@pytest.mark.parametrize(("problem", "gives_way"), [(errno.ENOMEM, 1), (errno.ENOSPC, 1), (errno.ESTALE, 0)])
def test_what_waits_for_the_disk_gives_way_to_a_save_that_needs_memory_and_to_no_rank_of_another_job(
    node: NodeVault, problem: int, gives_way: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(node.persister, "give_way", lambda: asked.append(None))

    def claim(_: int) -> Segment:
        raise OSError(problem, os.strerror(problem))

    with rank(node) as asking:
        monkeypatch.setattr(node.join(NAME), "claim", claim)
        assert isinstance(asking.ask(Save(step=1, objects=b"")), Refused)
    assert len(asked) == gives_way


def test_without_a_thread_for_it_a_rank_waits_for_its_save(node: NodeVault, monkeypatch: pytest.MonkeyPatch) -> None:
    with rank(node) as asking:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", fail)
            assert asking.ask(Save(step=1, objects=b"")) == Done()
        assert asking.steps() == (at(1),)


def test_a_rank_is_told_what_is_certified_of_its_job(node: NodeVault) -> None:
    order = BackupOrder(
        node="a",
        job="job",
        submitted_ms=1,
        world_size=2,
        generation=1,
        node_rank=0,
        nproc_per_node=1,
        certified_up_to=7,
    )
    with rank(node) as asking:
        assert asking.ask(AskCertified()) == Certified(up_to=None)
        assert node.assign(Assignment(order, "token")) is None
        assert asking.ask(AskCertified()) == Certified(up_to=7)


def test_a_rank_that_ended_in_a_collective_is_in_none_any_more(node: NodeVault, tmp_path: Path) -> None:
    first, second = (LedgerWriter(tmp_path / str(number), rank=0, generation=number) for number in (1, 2))
    for ledger in (first, second):
        ledger.enter_collective(b"all_reduce")
    with rank(node, ledger=str(first.path)):
        assert node.ledgers.are_in_collective()
    assert not node.ledgers.are_in_collective()
    # Its successor may come before its end is noticed.
    old = node.ledgers.watch(NAME, str(first.path))
    new = node.ledgers.watch(NAME, str(second.path))
    node.ledgers.leave(NAME, old)
    assert node.ledgers.are_in_collective()
    node.ledgers.leave(NAME, new)
    assert not node.ledgers.are_in_collective()
    for ledger in (first, second):
        ledger.close()


def test_steps_of_a_past_that_this_node_missed_do_not_hide_those_of_others(
    node: NodeVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = [at(9, 2), at(1)]
    monkeypatch.setattr(node.fetcher, "steps", lambda *_: elsewhere)
    with rank(node) as first:
        first.ask(Save(step=1, objects=b""))
        first.ask(Save(step=2, objects=b""))
    with rank(node, 2) as second:
        assert second.steps() == (at(2), at(1))
    # Generation 2 was another node's.
    with rank(node, 3) as third:
        assert third.steps() == tuple(elsewhere)


def test_a_single_step_does_not_hide_those_of_others(node: NodeVault, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [at(7), at(6)]
    monkeypatch.setattr(node.fetcher, "steps", lambda *_: elsewhere)
    with rank(node) as first:
        first.ask(Save(step=8, objects=b""))
    with rank(node, 2) as second:
        assert second.steps() == tuple(elsewhere)
        # A vault that knows of the generation's beginning has lost nothing since.
        second.ask(KeepOnly(sealed=at(8)))
        second.ask(Save(step=9, objects=b""))
    with rank(node, 3) as third:
        assert third.steps() == (at(9, 2), at(8))


def test_the_first_save_of_an_empty_vault_is_answered_when_it_is_sealed(
    node: NodeVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, sealed_first = threading.Event(), list[bool]()
    seal = local_session.seal

    def sealing(*arguments: Any) -> Any:
        sealed_first.append(not answered.wait(0.1))
        return seal(*arguments)

    monkeypatch.setattr(local_session, "seal", sealing)
    with rank(node) as asking:
        for step in (1, 2):
            answered.clear()
            assert asking.ask(Save(step=step, objects=b"")) == Done()
            answered.set()
            asking.steps()
    assert sealed_first == [True, False]


def test_a_refused_save_waits_until_a_step_is_frozen_but_not_again_and_again(
    node: NodeVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(interruptions, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    waits: list[float] = []
    wait = node._assignments.wait_until_frozen

    def waiting(job: JobId, timeout_s: float) -> None:
        waits.append(timeout_s)
        threading.Timer(0.05, node.assign, args=(Assignment(frozen, "token"),)).start()
        wait(job, 30.0)
        clock[0] += 0.5

    monkeypatch.setattr(node._assignments, "wait_until_frozen", waiting)
    keeper = VaultAddress(node="b", host="127.0.0.1", port=1)
    order = BackupOrder(
        node="a", job="job", submitted_ms=1, world_size=2, generation=1, node_rank=0, nproc_per_node=1, keeper=keeper
    )
    frozen = msgspec.structs.replace(order, number=1, frozen_step=3, frozen_generation=1)
    node.assign(Assignment(order, "token"))

    def claim(_: int) -> Segment:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with rank(node) as asking:
        monkeypatch.setattr(node.join(NAME), "claim", claim)
        assert isinstance(asking.ask(Save(step=5, objects=b"")), Refused)
        assert waits == [interruptions.WAIT_S]
        present = node._assignments.present
        assert present is not None and present.order == frozen
        for later_s, waited in ((1.0, 1), (5.0, 2)):
            clock[0] += later_s
            assert isinstance(asking.ask(Save(step=6, objects=b"")), Refused)
            assert len(waits) == waited
