"""A shard that a rank fills from its beginning: hashed as far as it has come, and sealed when all of it is hashed."""

from __future__ import annotations

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES, chunk_hash, chunks_of, seal
from holdfast_vault.shelf.segments import SealedContents, Segment


class OutOfOrder(ValueError):
    """A rank has reported progress that cannot be."""


class Filling:
    def __init__(self, segment: Segment, sealed: SealedStep, index: bytes, objects: bytes) -> None:
        self.segment = segment
        self.sealed = sealed
        self._index = index
        self._objects = objects
        self._up_to = 0
        self._hashes: list[int] = []

    @property
    def is_whole(self) -> bool:
        return self._up_to == self.segment.nbytes

    def reach(self, up_to: int) -> None:
        """Hash the chunks that are complete with the first `up_to` bytes. Raises OutOfOrder."""
        nbytes = self.segment.nbytes
        if not self._up_to <= up_to <= nbytes:
            raise OutOfOrder(f"{up_to} bytes of {nbytes} cannot have come after {self._up_to}")
        self._up_to = up_to
        complete = chunks_of(nbytes) if up_to == nbytes else up_to // CHUNK_BYTES
        for number in range(len(self._hashes), complete):
            self._hashes.append(chunk_hash(self.segment.memory, number))

    def contents(self) -> SealedContents:
        """Return what is to be put on the shelf; all must have come."""
        if not self.is_whole:
            raise OutOfOrder(f"{self.sealed} is not whole: {self._up_to} of {self.segment.nbytes} bytes have come")
        notes = self._index, self._objects
        return SealedContents(
            sealed=self.sealed,
            index=self._index,
            objects=self._objects,
            seal=seal(notes, self.segment.memory, tuple(self._hashes)),
        )
