"""The senders to all other vaults that the present assignment names."""

from __future__ import annotations

import threading

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment, job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.notices import Notices
from holdfast_vault.pacing import Pacing
from holdfast_vault.peers.sending.backlog import WaitingCopy
from holdfast_vault.peers.sending.sender import Sender
from holdfast_vault.shelf.shelves import Shelves


class Senders:
    """One sender for each vault. The keeper gets the steps that ranks of this node seal. All vaults of the assignment,
    also those that may still hold earlier steps, get the cuts: the steps that ranks have abandoned.
    """

    def __init__(self, shelves: Shelves, notices: Notices, pacing: Pacing) -> None:
        self._shelves = shelves
        self._notices = notices
        self._pacing = pacing
        self._lock = threading.Lock()
        self._assignment: Assignment | None = None
        self._senders: dict[VaultAddress, Sender] = {}

    def assign(self, new: Assignment) -> None:
        with self._lock:
            old, self._assignment = self._assignment, new
            if old is None or _identity(old) != _identity(new):
                self._end_all()
            wanted = dict.fromkeys((*_keeper(new), *new.order.sources)) if new.token else {}
            for address in self._senders.keys() - wanted:
                self._senders.pop(address).end()
            fresh = [address for address in wanted if address not in self._senders]
            for address in fresh:
                self._senders[address] = Sender(address, new, self._shelves, self._notices, self._pacing)
            for name in map(new.shard_of, new.order.ranks):
                self._catch_up(new, name, fresh)

    def sealed(self, name: ShardName, sealed: SealedStep, before: int | None) -> None:
        """Send a step that a rank of this node has sealed, if it is one of those to be sent. `before`: its step before
        that (`LastSteps`).
        """
        with self._lock:
            assignment = self._assignment
            if assignment is None or not _is_of(assignment, name):
                return
            if assignment.order.is_sent(sealed.step, before):
                self._send(assignment, WaitingCopy(name, sealed))

    def went_on(self, name: ShardName, cut: Cut) -> None:
        """Send the cut of a rank that continues from a step, and that step whatever its number: all ranks have it."""
        with self._lock:
            assignment = self._assignment
            if assignment is None or not _is_of(assignment, name):
                return
            for sender in self._senders.values():
                sender.send_cut(name, cut)
            if cut.kept is not None:
                self._send(assignment, WaitingCopy(name, cut.kept))

    def close(self) -> None:
        with self._lock:
            self._end_all()

    def _catch_up(self, assignment: Assignment, name: ShardName, fresh: list[VaultAddress]) -> None:
        """Send new vaults what happened before the assignment named them: the cut and the newest step."""
        shelf = self._shelves.of(name)
        if not _keeper(assignment):
            shelf.forget_sent()
        cut, steps = shelf.cut, shelf.steps()
        for address in fresh:
            if cut is not None:
                self._senders[address].send_cut(name, cut)
        # A rank that has not gone on yet in this generation may leave its newest step behind.
        generation = assignment.order.generation
        has_gone_on = cut is not None and cut.generation >= generation
        if steps and (has_gone_on or steps[0].generation >= generation) and {*fresh} & {*_keeper(assignment)}:
            self._send(assignment, WaitingCopy(name, steps[0]))

    def _send(self, assignment: Assignment, copy: WaitingCopy) -> None:
        for address in _keeper(assignment):
            if address in self._senders:
                self._senders[address].add(copy)

    def _end_all(self) -> None:
        for sender in self._senders.values():
            sender.end()
        self._senders.clear()


def _identity(assignment: Assignment) -> tuple[object, ...]:
    order = assignment.order
    return assignment.job, order.generation, order.node, assignment.token


def _keeper(assignment: Assignment) -> tuple[VaultAddress, ...]:
    keeper = assignment.order.keeper
    return (keeper,) if keeper is not None else ()


def _is_of(assignment: Assignment, name: ShardName) -> bool:
    return assignment.job == job_of(name) and name.rank in assignment.order.ranks
