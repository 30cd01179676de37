"""What a node makes of the steps that are due for the disk, as far as no process writes them yet."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.node.vault import seals
from holdfast.node.vault.messages import Notice, NotPersisted, PersistTo, SealedStep, ShardName
from holdfast.orders.backup import BackupOrder
from holdfast_vault.assignments import Assignment, Assignments, job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.disk import persister as persist
from holdfast_vault.disk.persister import LEFT_BEHIND, NO_MEMORY, NOT_KEPT, Persister
from holdfast_vault.notices import Notices
from holdfast_vault.rank_ledgers import RankLedgers
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelves import Shelves

NBYTES = 2 << 20
RANKS = [ShardName(job="job", submitted_ms=1, world_size=2, rank=rank) for rank in (0, 1)]


def at(step: int) -> SealedStep:
    return SealedStep(generation=1, step=step)


class _Heard(Notices):
    def __init__(self, said: list[Notice]) -> None:
        super().__init__()
        self._said = said

    def publish(self, notice: Notice) -> None:
        self._said.append(notice)


class Vault:
    """A node of two ranks, every fifth step of which is due. It has no memory for a process of its own."""

    def __init__(self, place: Path) -> None:
        self.said: list[Notice] = []
        self.shelves, assignments = Shelves(), Assignments()
        self.shelves.serve(job_of(RANKS[0]))
        self._to = PersistTo(place=str(place), steps_max=3)
        order = BackupOrder(
            node="a",
            job="job",
            submitted_ms=1,
            world_size=2,
            generation=1,
            node_rank=0,
            nproc_per_node=2,
            persist_every=5,
        )
        assignments.put(Assignment(order, "token"))
        self.persister = Persister(self.shelves, assignments, RankLedgers(), _Heard(self.said))

    def seal(self, rank: int, step: int) -> None:
        shelf = self.shelves.of(RANKS[rank])
        segment = shelf.claim(NBYTES)
        shelf.seal(
            segment, SealedContents(sealed=at(step), index=b"", objects=b"", seal=seals.seal((), segment.memory))
        )
        self.persister.sealed(RANKS[rank], at(step), step - 1, self._to)

    def holds(self) -> int:
        return sum(each.holds for name in RANKS for each in self.shelves.of(name)._segments)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path)


def left_out(step: int, reason: str, rank: int = 0) -> NotPersisted:
    return NotPersisted(name=RANKS[rank], sealed=at(step), reason=reason)


def test_a_step_that_gave_way_before_all_ranks_had_it_is_said_to_be_left_out_once(vault: Vault) -> None:
    vault.seal(0, 5)
    assert vault.holds() == 1
    assert vault.persister.give_way()
    assert not vault.persister.give_way()
    vault.seal(1, 5)
    assert (vault.said, vault.holds()) == ([left_out(5, NO_MEMORY)], 0)


def test_a_step_that_some_rank_never_has_is_said_to_be_left_out(vault: Vault) -> None:
    vault.seal(0, 5)
    vault.seal(0, 10)
    assert (vault.said, vault.holds()) == ([left_out(5, NOT_KEPT)], 1)


def test_a_step_that_nobody_can_write_now_holds_up_none_that_comes_after_it(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[threading.Thread] = []

    def begin(thread: threading.Thread) -> None:
        begun.append(thread)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for step, start in ((5, fail), (10, begin)):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            vault.seal(0, step)
            vault.seal(1, step)
    assert vault.said == [left_out(5, "no thread can be started to write it: can't start new thread")]
    assert (len(begun), vault.holds()) == (1, 2)


class Immortal:
    """A process in a call to a mount that hangs: it is dead when that is over."""

    kill_count = 0

    def kill(self) -> None:
        self.kill_count += 1

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "this may take for ever"
        raise subprocess.TimeoutExpired("", timeout)


def test_a_process_that_does_not_die_holds_nobody_up(vault: Vault) -> None:
    process = Immortal()
    step: Any = SimpleNamespace(process=process, is_ended=False)
    persist._end(step)
    vault.persister._writing = step
    vault.persister.close()
    assert (step.is_ended, process.kill_count) == (True, 2)


@pytest.mark.parametrize("is_held_before", [False, True])
def test_so_is_one_that_the_job_left_behind_meanwhile(
    vault: Vault, is_held_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.seal(0, 5)
    shelf = vault.shelves.of(RANKS[1])
    hold = shelf.hold

    def hold_beside_a_cut(sealed: SealedStep) -> Segment | None:
        early = hold(sealed) if is_held_before else None
        shelf.keep_only(Cut(generation=2, at_ns=1, kept=None))
        return early or hold(sealed)

    monkeypatch.setattr(shelf, "hold", hold_beside_a_cut)
    vault.seal(1, 5)
    assert (vault.said, vault.holds()) == ([left_out(5, LEFT_BEHIND, rank=1)], 0)
