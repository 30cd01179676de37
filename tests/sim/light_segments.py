"""Segments without memory, and what the shards that they stand for are made of."""

from __future__ import annotations

import random
from typing import NamedTuple

import xxhash

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES, Seal
from holdfast.topology import Topology
from holdfast_ckpt.plan.replica_groups import REPLICA_DIMENSIONS
from holdfast_vault.shelf.segments import SealedContents, Segment

CHUNKS_MAX = 9


class LightSegment(Segment):
    """`data` is what lies in it: the hash of each chunk that was written, whole or not."""

    def __init__(self, name: str, nbytes: int, absent: frozenset[int] = frozenset(), *, is_fresh: bool = False) -> None:
        self.nbytes = nbytes
        self.absent = absent
        self.contents: SealedContents | None = None
        self.holds = 0
        self.is_filling = False
        self._to_come = set[int]()
        self.data: dict[int, int] = {}


def begun(segment: Segment) -> LightSegment:
    """A segment that was just claimed: whoever fills it writes over what was there."""
    assert isinstance(segment, LightSegment)
    segment.data = {}
    return segment


class Alike(NamedTuple):
    """Which chunks the replicas of a job have in common: the first `common`, but for one of `odd_one` now and then."""

    common: int
    odd_one: float
    frozen: int
    """So many chunks are the same at every step."""


class Shards:
    """What each rank has at each step. The same question has the same answer: it is the truth to compare with."""

    def __init__(self, seed: int, topology: Topology) -> None:
        chance = random.Random(seed)
        self._seed = seed
        self._topology = topology
        self.alike = Alike(
            common=chance.choice((0, CHUNKS_MAX, CHUNKS_MAX, chance.randint(1, CHUNKS_MAX))),
            odd_one=chance.choice((0.0, 0.0, 0.1)),
            frozen=chance.choice((0, 0, 2)),
        )
        # Of an optimizer that is sharded replicas have parts of their own, which may differ in size.
        self._are_equally_long = chance.random() < 0.7
        self._grow_at = chance.choice((0, 0, 2))
        self._chunks = chance.randint(1, CHUNKS_MAX - 2)
        self._sealed: dict[tuple[int, SealedStep], Seal] = {}

    def of(self, rank: int, sealed: SealedStep) -> Seal:
        """The seal of a rank's shard of a step: the hashes of all its chunks."""
        known = self._sealed.get((rank, sealed))
        if known is None:
            known = self._sealed[rank, sealed] = self._made(rank, sealed)
        return known

    def _made(self, rank: int, sealed: SealedStep) -> Seal:
        where = self._topology.mesh.coordinates(rank)
        group = tuple((name, index) for name, index in where.items() if name not in REPLICA_DIMENSIONS)
        length = self._chunks + _draw(self._seed, "length", group) % 2
        if not self._are_equally_long:
            length += _draw(self._seed, "length", rank) % 2
        if sealed.step < self._grow_at:
            length = max(1, length - 1)
        is_odd = _draw(self._seed, "odd", rank, sealed) % 1000 < 1000 * self.alike.odd_one
        odd = _draw(self._seed, "which", rank, sealed) % length if is_odd else None
        chunks = []
        for number in range(length):
            is_common = number < self.alike.common and number != odd and number < length - (not self._are_equally_long)
            when = "always" if number < self.alike.frozen and number != odd else sealed
            chunks.append(_draw(self._seed, "chunk", group if is_common else rank, when, number))
        return Seal(nbytes=length * CHUNK_BYTES, chunks=tuple(chunks), notes=())


def _draw(*what: object) -> int:
    return xxhash.xxh3_64_intdigest(repr(what).encode())
