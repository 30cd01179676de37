"""Shards that other nodes are sending here. One that stopped half way is kept, and goes on where it stopped."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import ShardName
from holdfast.node.vault.seals import chunk_bytes, is_seal_of
from holdfast_vault.cuts import survives
from holdfast_vault.peers.chunk_sets import unpacked
from holdfast_vault.peers.chunk_transfer import receive_chunk
from holdfast_vault.peers.peer_messages import ChunkHeader, Offer
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf

TAKE_OVER_S = 5.0
"""Time for a connection that is cut off to let go of its reception."""
TRIES = 3
"""Number of times a chunk may arrive damaged; after that it counts as damaged at its source."""


class NotTaken(Exception):
    """The shard is not taken; the message gives the reason."""


class Reception:
    """One shard on its way here, in a segment of its rank's shelf."""

    def __init__(self, shelf: Shelf, offer: Offer) -> None:
        """Take memory for it. Raises OSError: there is none, or the shelf is another job's."""
        self.sealed = offer.sealed
        self._seal = offer.seal
        self._shelf = shelf
        self.absent = unpacked(offer.absent, offer.seal.nbytes)
        """Chunks that do not come: a replica of the rank sends them."""
        self._segment = shelf.claim(offer.seal.nbytes, self.absent)
        self._contents = SealedContents(sealed=offer.sealed, index=offer.index, objects=offer.objects, seal=offer.seal)
        self._missing = set(range(len(offer.seal.chunks))) - self.absent
        self._failures = [0] * len(offer.seal.chunks)

    def is_of(self, offer: Offer) -> bool:
        same = (self.sealed, self._seal) == (offer.sealed, offer.seal)
        return same and self.absent == unpacked(offer.absent, offer.seal.nbytes)

    @property
    def first_missing(self) -> int:
        return min(self._missing)

    @property
    def is_whole(self) -> bool:
        return not self._missing

    @property
    def chunks_here(self) -> int:
        """Number of chunks that have come, and are whole."""
        return len(self._seal.chunks) - len(self.absent) - len(self._missing)

    def take(self, link: socket.socket, chunk: ChunkHeader) -> bool:
        """Receive a chunk; False if it is damaged. Raises NotTaken: too often; WireError: it is not of this shard."""
        if chunk.nbytes != chunk_bytes(self._seal.nbytes, chunk.number) or chunk.number in self.absent:
            raise WireError(f"chunk {chunk.number} of {chunk.nbytes} bytes is none of the shard that was offered")
        # It is missing until it has been checked, even if it was here before.
        self._missing.add(chunk.number)
        if receive_chunk(link, chunk, self._segment, self._seal.chunks[chunk.number]):
            self._missing.discard(chunk.number)
            return True
        self._failures[chunk.number] += 1
        if self._failures[chunk.number] >= TRIES:
            raise NotTaken(f"chunk {chunk.number} of {self.sealed} failed its checksum {TRIES} times")
        return False

    def seal(self) -> None:
        """Put the received shard on the shelf. Raises NotTaken: the job has left this step behind meanwhile."""
        if not self._shelf.seal(self._segment, self._contents):
            raise NotTaken(f"the job has left {self.sealed} behind")

    def drop(self) -> None:
        """Give its memory back."""
        self._shelf.put_back(self._segment)


class ReceptionSlot:
    """The reception of one rank's shards. They come from one place only, so one connection at a time has its turn. All
    but `enter`, and reading `reception`, is only for that connection; or for `drop_if_idle`, while there is none."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._link: socket.socket | None = None
        self.reception: Reception | None = None

    def enter(self, link: socket.socket) -> None:
        """Take the turn, and cut off the connection that had it. Raises NotTaken: that one does not let go."""
        before = self._link
        if before is not None:
            with suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
        if not self._turn.acquire(timeout=TAKE_OVER_S):
            raise NotTaken("another connection is sending this rank's shards")
        self._link = link

    def leave(self) -> None:
        """Give the turn back. A partial shard stays, for the connection that goes on with it."""
        self._link = None
        self._turn.release()

    def expect(self, shelf: Shelf, offer: Offer) -> Reception:
        """Return the half-done reception of this shard, or a new one; another partial shard is dropped for it. Raises
        NotTaken: the job has left this step behind, the offer fails its checksum, or there is no memory."""
        if self.reception is not None:
            if self.reception.is_of(offer):
                return self.reception
            self.drop()
        if not survives(offer.sealed, shelf.cut):
            raise NotTaken(f"the job has left {offer.sealed} behind")
        if not is_seal_of(offer.seal, offer.index, offer.objects):
            raise NotTaken(f"what is offered as {offer.sealed} fails its checksum")
        try:
            self.reception = Reception(shelf, offer)
        except OSError as error:
            raise NotTaken(f"{offer.seal.nbytes} bytes are not taken: {error.strerror}") from error
        return self.reception

    def seal(self) -> None:
        """Put the whole shard on the shelf. Raises NotTaken: the job has left its step behind."""
        assert self.reception is not None
        self.reception.seal()
        self.reception = None

    def drop(self) -> None:
        """End the reception, and give the memory of its partial shard back."""
        if self.reception is not None:
            self.reception.drop()
        self.reception = None

    def drop_if_idle(self) -> None:
        """Drop a partial shard, unless a connection is sending it."""
        if self._turn.acquire(blocking=False):
            self.drop()
            self._turn.release()


class Receptions:
    """The receptions of all ranks whose shards other nodes send here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[ShardName, ReceptionSlot] = {}

    def slot(self, name: ShardName) -> ReceptionSlot:
        with self._lock:
            return self._slots.setdefault(name, ReceptionSlot())

    def drop_if_idle(self, name: ShardName) -> None:
        """Drop the partial shard of this rank, unless a connection is sending it."""
        with self._lock:
            slot = self._slots.get(name)
        if slot is not None:
            slot.drop_if_idle()

    def partial(self, name: ShardName) -> Reception | None:
        """Return the partial shard of this rank, of which a connection may be writing more."""
        with self._lock:
            slot = self._slots.get(name)
        return slot.reception if slot is not None else None

    def clear(self) -> None:
        """Forget all, for the node serves another job: the memory of partial shards went with the shelves of this one,
        and no connection of it puts anything on a shelf any more."""
        with self._lock:
            self._slots.clear()
