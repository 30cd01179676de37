"""Gets the chunks of a shard from all who have it, and checks each as it comes."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec
import structlog

from holdfast.node.frames import WireError, receive, send
from holdfast.node.vault.messages import DamageNotice, Refused, SealedStep, ShardName
from holdfast.node.vault.seals import Seal, chunk_bytes, is_seal_of
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.notices import Notices
from holdfast_vault.peers.chunk_sets import unpacked
from holdfast_vault.peers.chunk_transfer import receive_chunk
from holdfast_vault.peers.fetching.chunk_queue import ChunkQueue
from holdfast_vault.peers.handshake import voucher
from holdfast_vault.peers.peer_link import NoPeerVault, PeerRefused, ask, dial
from holdfast_vault.peers.peer_messages import AskChunk, AskWhich, AskWhole, ChunkHeader, Lacks, Which, Whole, replies
from holdfast_vault.shelf.segments import Segment

WINDOW = 4
"""Chunks asked of one source at once. Few: what is asked of a slow one is not asked of another."""
STALL_S = 5.0
"""A source that gives nothing for this long is given up: it has been restarted."""
RECONNECTS = 3
BACK_OFF_S = 0.2

log = structlog.get_logger(__name__)


class NotFetched(Exception):
    """No source could give it; the message gives the reason."""


class WantedShard(msgspec.Struct, frozen=True):
    """A shard to fetch and its seal; chunks of the `alike` ranks are as good where they have the same hash."""

    name: ShardName
    sealed: SealedStep
    seal: Seal
    alike: tuple[int, ...] = ()


def whole_of(
    name: ShardName, sealed: SealedStep, sources: Sequence[VaultAddress], assignment: Assignment
) -> tuple[Whole, Sequence[VaultAddress]]:
    """Return all but the data, by the first source that has it right; and the other good sources. Raises NotFetched."""
    reasons: list[str] = []
    for index, source in enumerate(sources):
        try:
            with dial(source, assignment, STALL_S) as link:
                whole = ask(link, AskWhole(name=name, sealed=sealed))
        except WireError as error:
            reasons.append(f"{source.node}: {error}")
            continue
        if not isinstance(whole, Whole) or not _is_vouched_for(whole, name, sealed, assignment.token):
            reasons.append(f"{source.node}: no vault of the job vouches for what it gave")
        elif not is_seal_of(whole.seal, whole.index, whole.objects):
            reasons.append(f"{source.node}: what it has fails its checksum")
        else:
            return whole, sources[index:]
    raise NotFetched("; ".join(reasons) or "no other node has it")


def _is_vouched_for(whole: Whole, name: ShardName, sealed: SealedStep, token: str) -> bool:
    mac = voucher(token, name, sealed, whole.index, whole.objects, whole.seal, whole.absent)
    return hmac.compare_digest(whole.mac, mac)


class Pull:
    """The fetch of one shard, or of its damaged chunks, into a segment that nothing else fills."""

    def __init__(
        self,
        shard: WantedShard,
        segment: Segment,
        numbers: Iterable[int],
        sources: Sequence[VaultAddress],
        assignment: Assignment,
        notices: Notices,
    ) -> None:
        self._shard = shard
        self._segment = segment
        self._sources = sources
        self._assignment = assignment
        self._notices = notices
        self._changed = threading.Condition()
        self._queue = ChunkQueue(numbers, sources)
        self._links: set[socket.socket] = set()
        self._reasons: list[str] = []
        self._is_over = False

    def run(self) -> Counter[VaultAddress]:
        """Fetch all; return how many chunks each source gave. Raises NotFetched: no source is left for the rest."""
        for source in self._sources:
            threading.Thread(target=self._work, args=(source,), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._queue.is_whole or self._queue.is_hopeless)
            is_whole, self._is_over = self._queue.is_whole, True
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
            # Nothing writes to the segment when this returns.
            self._changed.wait_for(lambda: self._queue.is_quiet)
        if not is_whole:
            raise NotFetched("; ".join(self._reasons) or "no other node has it whole")
        return self._queue.given

    @property
    def given(self) -> Counter[VaultAddress]:
        return self._queue.given

    @property
    def missing(self) -> list[int]:
        with self._changed:
            return self._queue.missing

    def _work(self, source: VaultAddress) -> None:
        try:
            for attempt in range(RECONNECTS):
                try:
                    return self._draw(source)
                except (NoPeerVault, PeerRefused) as error:
                    return self._give_up(source, str(error))
                except WireError as error:
                    self._give_up(source, str(error))
                with self._changed:
                    self._queue.put_back(source)
                    self._changed.notify_all()
                    if self._changed.wait_for(lambda: self._is_over, BACK_OFF_S * 2**attempt):
                        return None
        finally:
            with self._changed:
                self._queue.leave(source)
                self._changed.notify_all()

    def _give_up(self, source: VaultAddress, reason: str) -> None:
        with self._changed:
            if not self._is_over:
                log.warning("a source gives no more", source=source.node, of=str(self._shard.name), reason=reason)
                self._reasons.append(f"{source.node}: {reason}")

    def _draw(self, source: VaultAddress) -> None:
        """Get from one source as long as there is anything to get."""
        with dial(source, self._assignment, STALL_S) as link:
            with self._changed:
                self._links.add(link)
            try:
                which = ask(link, self._which())
                if not isinstance(which, Which):
                    raise WireError(f"the question which chunks it has was answered by {type(which).__name__}")
                there = unpacked(which.chunks, self._shard.seal.nbytes)
                with self._changed:
                    self._queue.lacks(source, [number for number in self._queue.missing if number not in there])
                    self._changed.notify_all()
                asked: deque[int] = deque()
                while self._ask_more(link, source, asked):
                    self._take(link, source, asked.popleft())
            finally:
                with self._changed:
                    self._links.discard(link)

    def _ask_more(self, link: socket.socket, source: VaultAddress, asked: deque[int]) -> bool:
        """Fill the window; False when nothing is left to be asked."""
        more: list[int] = []
        with self._changed:
            while not more and not self._is_over:
                while len(asked) + len(more) < WINDOW and (number := self._queue.take(source)) is not None:
                    more.append(number)
                if asked or more:
                    break
                self._changed.wait()
            if self._is_over:
                return False
        for number in more:
            asked.append(number)
            send(link, self._question(source, number))
        return True

    def _which(self) -> AskWhich:
        shard = self._shard
        return AskWhich(name=shard.name, sealed=shard.sealed, hashes=shard.seal.chunks, alike=shard.alike)

    def _question(self, source: VaultAddress, number: int) -> AskChunk:
        shard = self._shard
        return AskChunk(
            name=shard.name,
            sealed=shard.sealed,
            number=number,
            hash=shard.seal.chunks[number],
            alike=shard.alike,
            is_repeated=self._queue.failures(source, number) > 0,
        )

    def _take(self, link: socket.socket, source: VaultAddress, number: int) -> None:
        shard = self._shard
        reply, _ = receive(link, replies)
        if isinstance(reply, Refused):
            raise PeerRefused(reply.reason)
        if reply == Lacks(number=number):
            with self._changed:
                self._queue.lacks(source, [number])
                self._changed.notify_all()
            return
        expected = ChunkHeader(number=number, nbytes=chunk_bytes(shard.seal.nbytes, number))
        if not isinstance(reply, ChunkHeader) or reply != expected:
            raise WireError(f"chunk {number} was answered by {type(reply).__name__}")
        try:
            is_whole = receive_chunk(link, reply, self._segment, shard.seal.chunks[number])
        except OSError as error:
            raise PeerRefused(f"there is no memory for what it gives: {error.strerror}") from error
        with self._changed:
            if is_whole:
                self._queue.done(source, number)
            else:
                self._queue.spoiled(source, number)
            self._changed.notify_all()
        if not is_whole:
            detail = f"chunk {number} fails its checksum as it arrives"
            self._reasons.append(f"{source.node}: {detail}")
            self._notices.publish(DamageNotice(name=shard.name, sealed=shard.sealed, node=source.node, detail=detail))
