"""The chunks that a rank need not send because a replica sends the same, found by comparing hashes (ADR 12).

ByteRobust (§6.3) backs up model states once for each data-parallel group. Which tensors are the same in all replicas
depends on the training (everything under DDP, the parameters under ZeRO-1), so it is measured, not configured: of
replicas 0 to n - 1 number i sends chunk i, i + n, ..., and the others leave these out where theirs have the same hash.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.node.vault.seals import Seal
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers.peer_link import ask, dial
from holdfast_vault.peers.peer_messages import SEAL_WAIT_S, AskHashes, Hashes
from holdfast_vault.shelf.shelves import Shelves

WAIT_S = SEAL_WAIT_S + 0.5
"""Time for which a copy waits for all its replicas together."""
STALL_S = 5.0
AWAY_S = 15.0
"""Seconds in which a replica that did not answer in time is not asked: sending all beats waiting at every step."""

log = structlog.get_logger(__name__)


def share_of(alike: Sequence[int], rank: int) -> slice:
    """Return the chunks that this one of the replicas sends whatever the others have."""
    return slice(alike.index(rank), None, len(alike))


def sent_by_others(seal: Seal, alike: Sequence[int], hashes: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """Return the chunks that a replica sends in place of this one. `hashes` has each replica's share, if known."""
    found: set[int] = set()
    for rank, theirs in hashes.items():
        numbers = range(len(seal.chunks))[share_of(alike, rank)]
        found.update(number for number, hash_ in zip(numbers, theirs, strict=False) if seal.chunks[number] == hash_)
    return frozenset(found)


def holders_of(assignment: Assignment, rank: int) -> tuple[VaultAddress, ...]:
    """Return the other nodes' vaults that may have chunks of a rank's replicas, the likeliest first."""
    order = assignment.order
    nodes = {other // order.nproc_per_node for other in order.alike_of(rank)}
    theirs = [replica for replica in order.replicas if replica.node_rank in nodes]
    own = [replica.vault for replica in theirs if replica.vault is not None]
    everybody = dict.fromkeys((*own, *(vault for replica in theirs for vault in replica.others)))
    return tuple(vault for vault in everybody if vault.node != order.node)


class Replicas:
    """Asks the replicas of this node's ranks, all at once, and waits for none of them longer than for a moment."""

    def __init__(self, assignment: Assignment, shelves: Shelves) -> None:
        self._assignment = assignment
        self._shelves = shelves
        vaults = {replica.node_rank: replica.vault for replica in assignment.order.replicas}
        self._peers = {node_rank: _Peer(vault, assignment) for node_rank, vault in vaults.items() if vault is not None}

    def sent_by_others(self, name: ShardName, sealed: SealedStep, seal: Seal) -> frozenset[int]:
        """Return the chunks of a shard that replicas send in its place, as far as they answer in time."""
        order = self._assignment.order
        alike = order.alike_of(name.rank)
        theirs: dict[_Peer, list[AskHashes]] = {}
        own: list[tuple[int, slice]] = []
        for rank in alike:
            share = share_of(alike, rank)
            if rank in order.ranks:
                own.append((rank, share))
            elif (peer := self._peers.get(rank // order.nproc_per_node)) is not None:
                of = self._assignment.shard_of(rank)
                theirs.setdefault(peer, []).append(
                    AskHashes(name=of, sealed=sealed, first=share.start, every=share.step)
                )
        answers = ReplicaHashes()
        deadline = time.monotonic() + WAIT_S
        asked = sum(peer.ask(questions, answers) for peer, questions in theirs.items())
        hashes: dict[int, Sequence[int]] = {}
        for rank, share in own:
            if rank != name.rank:
                left_s = max(0.0, deadline - time.monotonic())
                sibling = self._shelves.of(self._assignment.shard_of(rank)).wait_for(sealed, left_s)
                hashes[rank] = sibling.chunks[share] if sibling is not None else ()
        return sent_by_others(seal, alike, hashes | answers.wait(asked, deadline))

    def close(self) -> None:
        """End the connections; threads that wait for an answer get none."""
        for peer in self._peers.values():
            peer.close()


class ReplicaHashes:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hashes: dict[int, Sequence[int]] = {}
        self._finished = 0

    def add(self, rank: int, hashes: Sequence[int]) -> None:
        with self._changed:
            self._hashes[rank] = hashes

    def finish(self) -> None:
        """Note that one of the asked replicas has finished."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def wait(self, asked: int, deadline: float) -> dict[int, Sequence[int]]:
        """Return the hashes that have arrived when all asked replicas have finished, or at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished >= asked, max(0.0, deadline - time.monotonic()))
            return dict(self._hashes)


class _Peer:
    """A replica's vault. One that does not answer in time is not asked again for a while."""

    def __init__(self, vault: VaultAddress, assignment: Assignment) -> None:
        self._vault = vault
        self._assignment = assignment
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._is_busy = False
        self._is_closed = False
        self._free_at = 0.0

    def ask(self, questions: Sequence[AskHashes], answers: ReplicaHashes) -> bool:
        """Ask the replica on a thread; return False if it is not asked now."""
        with self._lock:
            if self._is_closed or self._is_busy or time.monotonic() < self._free_at:
                return False
            self._is_busy = True
        try:
            threading.Thread(target=self._run, args=(questions, answers), daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._is_busy = False
            return False
        return True

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._link is not None:
                with contextlib.suppress(OSError):
                    self._link.shutdown(socket.SHUT_RDWR)
                if not self._is_busy:
                    self._link.close()

    def _run(self, questions: Sequence[AskHashes], answers: ReplicaHashes) -> None:
        began, is_through = time.monotonic(), False
        try:
            link = self._connected()
            for question in questions:
                answer = ask(link, question)
                if isinstance(answer, Hashes):
                    answers.add(question.name.rank, answer.hashes)
            is_through = time.monotonic() - began < WAIT_S
        except WireError as error:
            log.info("a replica's vault does not answer", vault=self._vault.node, reason=str(error))
            self._drop()
        finally:
            with self._lock:
                self._is_busy = False
                if not is_through:
                    self._free_at = time.monotonic() + AWAY_S
                if self._is_closed and self._link is not None:
                    self._link.close()
            answers.finish()

    def _connected(self) -> socket.socket:
        link = self._link or dial(self._vault, self._assignment, STALL_S)
        with self._lock:
            self._link = link
            if self._is_closed:
                raise WireError("it is not needed any more")
        return link

    def _drop(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link = None
