"""Simulated vaults: production shelves and choices; what one says to another takes no socket, and as long as it takes.

What is written here follows `session`, `senders`, `sender`, `peer_session` and `fetcher`, without threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from itertools import chain

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.cuts import Cut
from holdfast_vault.last_steps import LastSteps
from holdfast_vault.peers.fetching.discovery import FoundShards, vaults_of
from holdfast_vault.peers.peer_messages import RankSteps
from holdfast_vault.peers.sending import replicas
from holdfast_vault.shelf.pins import Pins, pins_of
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf
from tests.sim.light_segments import LightSegment, begun
from tests.sim.memory_copies import Copies, Offer, Reception


class NotThere(Exception):
    """A shard cannot be had; the message says what is missing."""


class LeftBehind(Exception):
    """A shard is not taken any more: its rank has gone on from an older step."""


class Network:
    """The vaults that live, by their nodes."""

    def __init__(self, chance: random.Random, tell: Callable[[str], None]) -> None:
        self.chance = chance
        self.tell = tell
        self.vaults: dict[str, Vault] = {}
        self.reported: Callable[[BackupOrder, SealedStep], None] = lambda order, sealed: None

    def at(self, address: VaultAddress | None) -> Vault | None:
        """Who answers there."""
        return self.vaults.get(address.node) if address is not None else None


class Vault:
    """The memory of one node."""

    def __init__(self, node: str, network: Network, *, steps_wanted: int, stocks: bool, tight: bool) -> None:
        """`stocks`: segments are made ahead; `tight`: whatever can be given back is given back at once."""
        self.node = node
        self.network = network
        self.assignment: Assignment | None = None
        self._shelves: dict[int, Shelf] = {}
        self._receptions: dict[int, Reception] = {}
        self._copies: Copies | None = None
        self._untold: dict[VaultAddress, dict[int, Cut]] = {}
        self._pins = Pins()
        self._last_steps = LastSteps(lambda name: self.shelf(name.rank))
        self._sent: dict[int, set[SealedStep]] = {}
        self._steps_wanted, self._stocks, self._tight = steps_wanted, stocks, tight

    def shelf(self, rank: int) -> Shelf:
        shelf = self._shelves.get(rank)
        if shelf is None:
            shelf = self._shelves[rank] = Shelf(f"{rank} on {self.node}", LightSegment, self._steps_wanted)
            shelf.pin(self._pins)
        return shelf

    def segments(self, rank: int, sealed: SealedStep) -> Iterator[LightSegment]:
        """What lies here of a rank's step. Asks the shelf as a reader would."""
        if rank in self._shelves:
            with self._shelves[rank].holding(sealed) as held:
                if held is not None and isinstance(held[0], LightSegment):
                    yield held[0]

    def _order(self) -> BackupOrder:
        assert self.assignment is not None
        return self.assignment.order

    def _name(self, rank: int) -> ShardName:
        assert self.assignment is not None
        return self.assignment.shard_of(rank)

    # --- the agent's word -------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        before, self.assignment = self.assignment, assignment
        order = assignment.order
        self._pins = pins_of(order)
        for shelf in self._shelves.values():
            shelf.pin(self._pins)
        fresh = list(vaults_of(assignment))
        if before is not None and before.order.generation == order.generation:
            fresh = [address for address in fresh if address not in vaults_of(before)]
        else:
            self.stop_sending()
            self._untold, self._sent = {}, {}
        if self._copies is None and order.keeper is not None:
            self._copies = Copies(self, assignment)
        for rank in order.ranks:
            self._catch_up(rank, order, fresh)

    def _catch_up(self, rank: int, order: BackupOrder, fresh: list[VaultAddress]) -> None:
        shelf = self.shelf(rank)
        if order.keeper is None:
            shelf.forget_sent()
        cut, steps = shelf.cut, shelf.steps()
        if cut is not None:
            for address in fresh:
                self._untold.setdefault(address, {})[rank] = cut
        has_gone_on = cut is not None and cut.generation >= order.generation
        if steps and (has_gone_on or steps[0].generation >= order.generation) and order.keeper in fresh:
            self._send(rank, steps[0])

    def stop_sending(self) -> None:
        if self._copies is not None:
            self._copies.end()
            self._copies = None

    # --- its own ranks ----------------------------------------------------------------------------

    def claim(self, rank: int, nbytes: int) -> LightSegment:
        return begun(self.shelf(rank).claim(nbytes))

    def seal(self, rank: int, segment: LightSegment, contents: SealedContents) -> None:
        """A rank's own step is whole."""
        shelf = self.shelf(rank)
        if not shelf.seal(segment, contents):
            return
        if self._stocks:
            shelf.stock(segment.nbytes)
        self._economize()
        order = self.assignment.order if self.assignment is not None else None
        if order is None or self.assignment is None or rank not in order.ranks:
            return
        before = self._last_steps.take(self.assignment.shard_of(rank), contents.sealed)
        if order.is_sent(contents.sealed.step, before):
            self._send(rank, contents.sealed)

    def go_on(self, rank: int, generation: int, at_ns: int, kept: SealedStep | None) -> None:
        shelf = self.shelf(rank)
        cut = Cut(generation=generation, at_ns=at_ns, kept=kept, behind=shelf.past_of(kept))
        shelf.keep_only(cut)
        if self.assignment is None or rank not in self._order().ranks:
            return
        self._last_steps.went_on(self.assignment.shard_of(rank), generation, kept)
        for address in vaults_of(self.assignment):
            self._untold.setdefault(address, {})[rank] = cut
        if kept is not None:
            self._send(rank, kept)

    def _send(self, rank: int, sealed: SealedStep) -> None:
        if self._copies is not None:
            self._copies.add(self._name(rank), sealed)

    # --- to others --------------------------------------------------------------------------------

    def work(self, chunks: int, *, tells: bool = True) -> None:
        """Tell others what was left behind, or else send some chunks of a copy."""
        address = next(iter(self._untold), None) if tells else None
        keeper = self._order().keeper if self.assignment is not None else None
        if address is None and keeper in self._untold:
            address = keeper  # before anything else is sent there
        if address is not None:
            cuts = self._untold.pop(address)
            if (other := self.network.at(address)) is not None:
                for rank, cut in cuts.items():
                    other.shelf(rank).keep_only(cut)
        elif self._copies is not None:
            self._copies.work(chunks)

    def has_work(self) -> bool:
        return bool(self._untold) or (self._copies is not None and self._copies.has_work())

    def sent(self, rank: int, sealed: SealedStep) -> None:
        """The keeper has it."""
        self.shelf(rank).note_sent(sealed)
        self._sent.setdefault(rank, set()).add(sealed)
        order = self._order()
        if all(sealed in self.shelf(each).sent() for each in order.ranks):
            self.network.reported(order, sealed)
        self._economize()

    def sent_now(self, rank: int) -> Collection[SealedStep]:
        """What the keeper of this generation has."""
        return self._sent.get(rank, ())

    # --- from others ------------------------------------------------------------------------------

    def offered(self, offer: Offer, generation: int) -> Reception | str:
        """Where chunks may be put; or "kept", or "refused"."""
        if self.assignment is not None and generation < self._order().generation:
            return "refused"
        contents, shelf = offer.contents, self.shelf(offer.rank)
        with shelf.holding(contents.sealed) as held:
            if held is not None and held[1].seal == contents.seal and held[0].absent <= offer.absent:
                return "kept"
        before = self._receptions.get(offer.rank)
        if before is not None:
            if before.offer == offer:
                return before
            before.drop()
        reception = Reception.begin(shelf, offer)
        if reception is None:
            self._receptions.pop(offer.rank, None)
            return "refused"
        self._receptions[offer.rank] = reception
        return reception

    def received(self, reception: Reception, generation: int) -> bool:
        """It is whole. False if it is of no use any more."""
        del self._receptions[reception.offer.rank]
        if self.assignment is not None and generation < self._order().generation:
            reception.drop()
            return False
        is_taken = reception.seal_it()
        self._economize()
        return is_taken

    def held(self, name: ShardName) -> RankSteps:
        shelf = self.shelf(name.rank)
        return RankSteps(name=name, sealed=tuple(shelf.steps()), cut=shelf.cut)

    # --- coming back ------------------------------------------------------------------------------

    def recent(self, rank: int, generation: int) -> list[SealedStep]:
        """What is here whole, and not of a time when the job did without this node."""
        shelf = self.shelf(rank)
        return [each for each in shelf.steps() if shelf.has_whole(each) and each.generation >= generation - 1]

    def steps(self, rank: int, generation: int, at_most: int | None) -> Collection[SealedStep]:
        """What is here of a rank, or can be had; as `session` and `fetcher` say it."""

        def may_be(sealed: SealedStep) -> bool:
            return at_most is None or sealed.step <= at_most

        here, recent = self.shelf(rank).steps(), self.recent(rank, generation)
        if generation == 1 or (any(map(may_be, recent)) and self.shelf(rank).has_common_step(recent)):
            return here
        if self.assignment is None or self._order().generation < generation:
            return here
        holders = self._search().holders(self._name(rank))
        newest = max(filter(may_be, holders), default=None)
        if newest is not None and self.network.chance.random() < 0.5:
            try:
                self.fetch(rank, newest)  # ahead, whether it is chosen or not
            except (NotThere, LeftBehind) as error:
                self.network.tell(f"  not fetched ahead: {error!r}")
        return {*holders, *self.shelf(rank).steps()}

    def fetch(self, rank: int, sealed: SealedStep) -> None:
        """See to it that a shard is whole on its shelf.

        Raises:
            NotThere: nobody has it, or not all of it.
            LeftBehind: it is not wanted any more.
        """
        shelf = self.shelf(rank)
        if shelf.has_whole(sealed):
            return
        assert self.assignment is not None, "a rank with nothing whole waits for its order"
        holders = self._search().holders(self._name(rank)).get(sealed, ())
        others = (*holders, *replicas.holders_of(self.assignment, rank))
        named = [vault for address in dict.fromkeys(others) if (vault := self.network.at(address)) is not None]
        vaults = [self, *named]
        with shelf.holding(sealed) as held:
            found = held[1] if held is not None else next(self._contents(rank, sealed, holders), None)
            if found is None:
                raise NotThere(f"nobody has {sealed} of rank {rank}")
            segment = self.claim(rank, found.seal.nbytes)
            alike = self._order().alike_of(rank)
            for number, hash_ in enumerate(found.seal.chunks):
                if not any(vault.has_chunk((rank, *alike), sealed, number, hash_) for vault in vaults):
                    shelf.put_back(segment)
                    raise NotThere(f"nobody gives chunk {number} of {sealed} of rank {rank}")
                segment.data[number] = hash_
        if not shelf.seal(segment, found):
            raise LeftBehind(f"{sealed} of rank {rank}")

    def has_chunk(self, ranks: Collection[int], sealed: SealedStep, number: int, hash_: int) -> bool:
        """Whether it is here, of one of these ranks, by its seal and in its memory."""
        for segment in chain.from_iterable(self.segments(rank, sealed) for rank in dict.fromkeys(ranks)):
            assert segment.contents is not None
            chunks = segment.contents.seal.chunks
            if number < len(chunks) and chunks[number] == hash_ and segment.data.get(number) == hash_:
                return True
        return False

    def _contents(self, rank: int, sealed: SealedStep, holders: Collection[VaultAddress]) -> Iterator[SealedContents]:
        for vault in map(self.network.at, holders):
            if vault is not None:
                for segment in vault.segments(rank, sealed):
                    assert segment.contents is not None
                    yield segment.contents

    def _search(self) -> FoundShards:
        assert self.assignment is not None
        names = list(map(self.assignment.shard_of, self._order().ranks))
        there = [(address, vault) for address in vaults_of(self.assignment) if (vault := self.network.at(address))]
        found = FoundShards((address, vault.held(name)) for address, vault in there for name in names)
        for name, cut in found.cuts.items():
            self.shelf(name.rank).keep_only(cut)
        return found

    # --- memory -----------------------------------------------------------------------------------

    def _economize(self) -> None:
        """Give back all that may be given back, as for want of memory: see `memory_budget` and `node_vault`."""
        if not self._tight:
            return
        order = self.assignment.order if self.assignment is not None else None
        is_settled = order is not None and all(map(self._has_sent, order.ranks))
        for rank, shelf in self._shelves.items():
            is_left = is_settled and order is not None and rank not in order.ranks and not order.is_kept_here(rank)
            if is_left and (reception := self._receptions.pop(rank, None)) is not None:
                reception.drop()
            for segment in shelf.spares(is_left=is_left):
                shelf.give_back(segment, is_left=is_left)

    def _has_sent(self, rank: int) -> bool:
        order, shelf = self._order(), self.shelf(rank)
        through = shelf.sent() if order.keeper is not None else shelf.steps()
        return any(each.generation >= order.generation for each in through)
