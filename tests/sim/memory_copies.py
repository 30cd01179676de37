"""Copies on their way from one simulated vault to another, chosen and compared by production code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.node.vault.seals import Seal
from holdfast_vault.assignments import Assignment
from holdfast_vault.cuts import survives
from holdfast_vault.peers.sending import replicas
from holdfast_vault.peers.sending.backlog import Backlog, WaitingCopy
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from tests.sim.light_segments import LightSegment, begun

if TYPE_CHECKING:
    from tests.sim.memory_vaults import Vault


class Offer(NamedTuple):
    """A shard that is to be taken, but for the chunks that replicas send."""

    rank: int
    contents: SealedContents
    absent: frozenset[int]


class Reception:
    """A shard that is coming."""

    def __init__(self, shelf: Shelf, offer: Offer) -> None:
        self.offer = offer
        self._shelf = shelf
        self._segment = begun(shelf.claim(offer.contents.seal.nbytes, offer.absent))
        self.missing = [number for number in range(len(offer.contents.seal.chunks)) if number not in offer.absent]

    @classmethod
    def begin(cls, shelf: Shelf, offer: Offer) -> Reception | None:
        """None: the job has left it behind."""
        return cls(shelf, offer) if survives(offer.contents.sealed, shelf.cut) else None

    def take(self, source: LightSegment, chunks: int) -> None:
        """As many chunks, as they lie there."""
        for number in self.missing[:chunks]:
            self._segment.data[number] = source.data[number]
        del self.missing[:chunks]

    def seal_it(self) -> bool:
        return self._shelf.seal(self._segment, self.offer.contents)

    def drop(self) -> None:
        self._shelf.put_back(self._segment)


class Copies:
    """What a vault sends to its keeper during one generation."""

    def __init__(self, vault: Vault, assignment: Assignment) -> None:
        self._vault = vault
        self._assignment = assignment
        self._backlog = Backlog()
        self._held: dict[WaitingCopy, Segment] = {}
        self._begun: tuple[WaitingCopy, frozenset[int]] | None = None

    def add(self, name: ShardName, sealed: SealedStep) -> None:
        copy = WaitingCopy(name, sealed)
        segment = self._vault.shelf(name.rank).hold(sealed)
        if segment is None:
            return
        if copy in self._held:
            self._vault.shelf(name.rank).let_go(segment)
            return
        self._held[copy] = segment
        self._backlog.add(copy)
        self._let_go(self._backlog.take_dropped())

    def has_work(self) -> bool:
        return bool(self._held)

    def end(self) -> None:
        self._let_go(list(self._held))

    def work(self, chunks: int) -> None:
        """Send some chunks of what is to be sent now."""
        copy = self._backlog.next()
        self._let_go(self._backlog.take_dropped())
        keeper = self._vault.network.at(self._assignment.order.keeper)
        if copy is None or keeper is None:
            return None
        segment = self._held[copy]
        assert isinstance(segment, LightSegment)
        contents = segment.contents
        if contents is None or segment.absent:
            return self._drop(copy, "the job has left it behind")
        if self._begun is None or self._begun[0] != copy:
            absent = self._sent_by_others(copy, contents.seal)
            if absent is None:
                return None
            self._begun = copy, absent
        offer = Offer(copy.name.rank, contents, self._begun[1])
        reception = keeper.offered(offer, self._assignment.order.generation)
        if isinstance(reception, Reception):
            reception.take(segment, chunks)
            if reception.missing:
                return None
            reception = "kept" if keeper.received(reception, self._assignment.order.generation) else "refused"
        if reception == "refused":
            return self._drop(copy, "it is not taken")
        self._backlog.done(copy)
        self._let_go([copy])
        self._vault.network.tell(f"  sent {_of(copy)} to {keeper.node} without {sorted(offer.absent)}")
        return self._vault.sent(copy.name.rank, copy.sealed)

    def _sent_by_others(self, copy: WaitingCopy, seal: Seal) -> frozenset[int] | None:
        """None: somebody has not sealed it yet, and is waited for."""
        order = self._assignment.order
        alike = order.alike_of(copy.name.rank)
        hashes: dict[int, Sequence[int]] = {}
        for rank in alike:
            if rank == copy.name.rank:
                continue
            vault = self._vault if rank in order.ranks else self._vault_of(rank)
            theirs = vault.shelf(rank).wait_for(copy.sealed, 0.0) if vault is not None else None
            is_late = (
                vault is not None
                and theirs is None
                and not any(each >= copy.sealed for each in vault.shelf(rank).steps())
            )
            if is_late and self._vault.network.chance.random() < 0.8:
                return None
            hashes[rank] = theirs.chunks[replicas.share_of(alike, rank)] if theirs is not None else ()
        return replicas.sent_by_others(seal, alike, hashes)

    def _vault_of(self, rank: int) -> Vault | None:
        order = self._assignment.order
        node_rank = rank // order.nproc_per_node
        address = next((each.vault for each in order.replicas if each.node_rank == node_rank), None)
        return self._vault.network.at(address)

    def _drop(self, copy: WaitingCopy, reason: str) -> None:
        self._vault.network.tell(f"  {_of(copy)} is not sent: {reason}")
        self._backlog.drop(copy)
        self._let_go(self._backlog.take_dropped())

    def _let_go(self, copies: Iterable[WaitingCopy]) -> None:
        for copy in copies:
            if (segment := self._held.pop(copy, None)) is not None:
                self._vault.shelf(copy.name.rank).let_go(segment)


def _of(copy: WaitingCopy) -> str:
    return f"{copy.sealed.generation}:{copy.sealed.step} of rank {copy.name.rank}"
