"""What a rank need not send, because a replica of it sends the same: found by comparing the hashes of chunks (ADR 12).

ByteRobust (§6.3) backs up model states once for each data-parallel group. Which tensors are the same in all replicas
depends on the training (everything under DDP, the parameters under ZeRO-1), so it is looked at, not asked for: of
replicas 0 to n - 1 number i sends chunk i, i + n, ..., and the others leave these out where theirs hash the same.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence

import structlog

from holdfast.backup_orders import VaultAddress
from holdfast.seals import Seal
from holdfast.vault_wire import SealedStep, ShardName, VaultWireError
from holdfast_agent.vault.assignments import Assignment
from holdfast_agent.vault.peer_link import PeerRefused, ask, dial
from holdfast_agent.vault.peer_wire import SEAL_WAIT_S, AskHashes, Hashes
from holdfast_agent.vault.shelves import Shelves

STALL_S = 5.0
AWAY_S = 10.0
"""Who did not answer is not asked for so long: a rank rather sends everything than waits for others at every step."""

log = structlog.get_logger(__name__)


def share_of(alike: Sequence[int], rank: int) -> slice:
    """The chunks that this one of the replicas sends whatever the others have."""
    return slice(alike.index(rank), None, len(alike))


def sent_by_others(seal: Seal, alike: Sequence[int], hashes: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """The chunks that a replica sends in this one's place. `hashes` are those of each replica's share, where known."""
    found: set[int] = set()
    for rank, theirs in hashes.items():
        numbers = range(len(seal.chunks))[share_of(alike, rank)]
        if len(theirs) == len(numbers):
            found.update(number for number, hash_ in zip(numbers, theirs, strict=True) if seal.chunks[number] == hash_)
    return frozenset(found)


def holders_of(assignment: Assignment, rank: int) -> tuple[VaultAddress, ...]:
    """The vaults that may have chunks of a rank's replicas, the likeliest first."""
    order = assignment.order
    nodes = {other // order.nproc_per_node for other in order.alike_of(rank)}
    theirs = [replica for replica in order.replicas if replica.node_rank in nodes]
    own = [replica.vault for replica in theirs if replica.vault is not None]
    return tuple(dict.fromkeys((*own, *(vault for replica in theirs for vault in replica.others))))


class Replicas:
    """Asks the replicas of this node's ranks. For one thread; its connections last until it is closed."""

    def __init__(self, assignment: Assignment, shelves: Shelves) -> None:
        self._assignment = assignment
        self._shelves = shelves
        self._vaults = {replica.node_rank: replica.vault for replica in assignment.order.replicas}
        self._links: dict[VaultAddress, socket.socket] = {}
        self._away_until: dict[VaultAddress, float] = {}

    def sent_by_others(self, name: ShardName, sealed: SealedStep, seal: Seal) -> frozenset[int]:
        """The chunks of a shard that replicas send in its place, as far as they say so in time."""
        alike = self._assignment.order.alike_of(name.rank)
        others = [rank for rank in alike if rank != name.rank]
        hashes = {rank: self._hashes(rank, sealed, share_of(alike, rank)) for rank in others}
        return sent_by_others(seal, alike, hashes)

    def close(self) -> None:
        """End the connections; whoever waits for an answer gets none."""
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _hashes(self, rank: int, sealed: SealedStep, share: slice) -> Sequence[int]:
        order, name = self._assignment.order, self._assignment.shard_of(rank)
        if rank in order.ranks:
            seal = self._shelves.of(name).wait_for(sealed, SEAL_WAIT_S)
            return seal.chunks[share] if seal is not None else ()
        vault = self._vaults.get(rank // order.nproc_per_node)
        if vault is None or time.monotonic() < self._away_until.get(vault, 0.0):
            return ()
        question = AskHashes(name=name, sealed=sealed, first=share.start, every=share.step)
        try:
            answer = ask(self._link(vault), question)
        except PeerRefused as error:
            log.debug("a replica is not compared", vault=vault.node, of=str(name), reason=str(error))
            return ()
        except VaultWireError as error:
            log.info("a replica's vault does not answer", vault=vault.node, reason=str(error))
            self._away_until[vault] = time.monotonic() + AWAY_S
            self._drop(vault)
            return ()
        return answer.hashes if isinstance(answer, Hashes) else ()

    def _link(self, vault: VaultAddress) -> socket.socket:
        link = self._links.get(vault)
        if link is None:
            link = self._links[vault] = dial(vault, self._assignment, STALL_S)
        return link

    def _drop(self, vault: VaultAddress) -> None:
        if (link := self._links.pop(vault, None)) is not None:
            link.close()
