"""Every order of saves, copies and deaths of vaults, for two and three ranks: the newest step of all ranks stays.

Shelves and their records are production code. What is true is looked up in the memory itself, by its contents. A vault
that is lost with its successor ends a history: from then until all ranks keep again it is the floor that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import Seal
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf, ShelfContents
from tests.sim.light_segments import LightSegment

NBYTES = 1


class Op(NamedTuple):
    kind: str
    number: int


Place = tuple[int, int]
"""A vault, and the rank whose shelf it is."""


class World:
    """One rank on each node; each node keeps the copies of the one before it."""

    def __init__(self, size: int, last_step: int) -> None:
        self.last_step = last_step
        self.ranks = range(size)
        self.shelves: dict[Place, Shelf] = {}
        self.records: dict[Place, ShelfContents] = {}
        for vault, rank in self._places():
            self.shelves[vault, rank] = self._shelf((vault, rank))
        self.begun = dict.fromkeys(self.ranks, 0)
        self.acknowledged = dict.fromkeys(self.ranks, 0)
        self.filling: dict[int, LightSegment] = {}
        self.copies: dict[int, tuple[LightSegment, LightSegment, SealedContents]] = {}
        self.copied: dict[int, set[int]] = {rank: set() for rank in self.ranks}
        self.deaths = 0
        self.lost: int | None = None
        """The step that all ranks had twice when a vault was lost with its successor."""

    def _places(self) -> Iterator[Place]:
        for rank in self.ranks:
            yield rank, rank
            yield self.keeper(rank), rank

    def keeper(self, rank: int) -> int:
        return (rank + 1) % len(self.ranks)

    def _shelf(self, place: Place) -> Shelf:
        return Shelf("", LightSegment, on_change=lambda contents: self.records.__setitem__(place, contents))

    # --- what can happen --------------------------------------------------------------------------

    def possible(self, deaths: int) -> list[Op]:
        if self.lost is not None:
            return []
        found = []
        for rank in self.ranks:
            if rank not in self.filling and self.begun[rank] == min(self.begun.values()) < self.last_step:
                found.append(Op("begin", rank))
            if rank in self.filling and self._may_seal(rank):
                found.append(Op("seal", rank))
            if rank in self.copies:
                found.append(Op("end copy", rank))
            elif self._to_copy(rank) is not None:
                found.append(Op("begin copy", rank))
        if self.deaths < deaths:
            found += [Op("kill", vault) for vault in self.ranks]
            if any(self.acknowledged.values()):
                found += [Op("lose", vault) for vault in self.ranks]
        return found

    def do(self, op: Op) -> None:
        rank = op.number
        match op.kind:
            case "begin":
                self.begun[rank] += 1
                self.filling[rank] = self._claim((rank, rank))
            case "seal":
                self._seal((rank, rank), self.filling.pop(rank), _contents(rank, self.begun[rank]))
                self.acknowledged[rank] = self.begun[rank]
            case "begin copy":
                step = self._to_copy(rank)
                assert step is not None
                source = self.shelves[rank, rank].hold(step)
                assert isinstance(source, LightSegment) and source.contents is not None
                self.copies[rank] = source, self._claim((self.keeper(rank), rank)), source.contents
            case "end copy":
                source, target, contents = self.copies.pop(rank)
                self._seal((self.keeper(rank), rank), target, contents)
                self.shelves[rank, rank].let_go(source)
                self.shelves[rank, rank].note_sent(contents.sealed)
                self.copied[rank].add(contents.sealed.step)
            case "kill":
                self._kill(rank, has_successor=True)
            case "lose":
                twice = set.intersection(*self.copied.values())
                self.lost = max(twice, default=0)
                self._kill(rank, has_successor=False)

    def _claim(self, place: Place) -> LightSegment:
        segment = self.shelves[place].claim(NBYTES)
        assert isinstance(segment, LightSegment)
        segment.data.clear()
        return segment

    def _seal(self, place: Place, segment: LightSegment, contents: SealedContents) -> None:
        segment.data[0] = contents.seal.chunks[0]
        assert self.shelves[place].seal(segment, contents)

    def _to_copy(self, rank: int) -> SealedStep | None:
        newest = next(iter(self.shelves[rank, rank].steps()), None)
        return newest if newest is not None and newest.step not in self.copied[rank] else None

    def _may_seal(self, rank: int) -> bool:
        """Copies keep up: all ranks have sent a step before any rank seals the next one."""
        before = self.begun[rank] - 1
        return all(before <= max(self.copied[each], default=0) for each in self.ranks)

    def _kill(self, vault: int, *, has_successor: bool) -> None:
        self.deaths += 1
        if self.filling.pop(vault, None) is not None:
            # The rank saves the step again.
            self.begun[vault] -= 1
        for rank in self.ranks:
            if rank in self.copies and vault in (rank, self.keeper(rank)):
                source, target, _ = self.copies.pop(rank)
                self.shelves[rank, rank].let_go(source)
                self.shelves[self.keeper(rank), rank].put_back(target)
        for place in [place for place in self.shelves if place[0] == vault]:
            record = self.records.pop(place, None)
            self.shelves[place] = shelf = self._shelf(place)
            if record is not None and has_successor:
                shelf.adopt([_inherited(*each) for each in record.held], record.cut, record.sent)
            elif place[1] != vault:
                self.copied[place[1]] = set()

    # --- what is true -----------------------------------------------------------------------------

    def check(self) -> None:
        common = set.intersection(*(self._restorable(rank) for rank in self.ranks))
        newest = max(common, default=0)
        if self.lost is None:
            assert newest >= min(self.acknowledged.values()), f"{common} of {self.acknowledged}"
        else:
            assert newest >= self.lost, f"{common}; all had {self.lost} twice"

    def _restorable(self, rank: int) -> set[int]:
        found = set()
        for vault in (rank, self.keeper(rank)):
            for segment, contents in self._sealed((vault, rank)):
                assert segment.data == {0: contents.seal.chunks[0]}, f"{contents.sealed} of rank {rank} is overwritten"
                found.add(contents.sealed.step)
        return found

    def _sealed(self, place: Place) -> Iterator[tuple[LightSegment, SealedContents]]:
        shelf = self.shelves[place]
        for sealed in shelf.steps():
            with shelf.holding(sealed) as held:
                assert held is not None and isinstance(held[0], LightSegment)
                yield held[0], held[1]

    def key(self) -> object:
        shelves = [
            (place, [(each.sealed.step, segment.holds) for segment, each in self._sealed(place)], shelf.sent())
            for place, shelf in self.shelves.items()
        ]
        copies = {rank: contents.sealed.step for rank, (*_, contents) in self.copies.items()}
        return repr((shelves, self.begun, self.acknowledged, sorted(self.filling), copies, self.deaths, self.lost))


def _contents(rank: int, step: int) -> SealedContents:
    seal = Seal(nbytes=NBYTES, chunks=(100 * (rank + 1) + step,), notes=())
    return SealedContents(sealed=SealedStep(generation=1, step=step), index=b"", objects=b"", seal=seal)


def _inherited(segment: object, contents: SealedContents) -> LightSegment:
    """The same memory in another process."""
    assert isinstance(segment, LightSegment)
    here = LightSegment("", NBYTES)
    here.contents, here.data = contents, segment.data
    return here


@pytest.mark.parametrize(("size", "last_step", "deaths"), [(2, 4, 1), (3, 1, 1)])
def test_whatever_dies_when_the_newest_step_of_all_ranks_stays(size: int, last_step: int, deaths: int) -> None:
    seen: set[object] = set()
    waiting: deque[tuple[Op, ...]] = deque([()])
    while waiting:
        history = waiting.popleft()
        world = World(size, last_step)
        try:
            for op in history:
                world.do(op)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"{[f'{kind} {number}' for kind, number in history]}: {error}") from error
        key = world.key()
        if key in seen:
            continue
        seen.add(key)
        waiting.extend((*history, op) for op in world.possible(deaths))
    assert len(seen) > 400
