"""One connection from another node's vault, which has shown that it belongs to the job: a thread answers it."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable

import msgspec
import structlog

from holdfast.node.frames import WireError, receive, receive_into, send
from holdfast.node.vault.messages import DamageNotice, Refused, ShardName
from holdfast_vault.notices import Notices
from holdfast_vault.peers import peer_messages as messages
from holdfast_vault.peers.chunk_sets import packed, unpacked
from holdfast_vault.peers.chunk_transfer import send_chunk
from holdfast_vault.peers.handshake import voucher
from holdfast_vault.peers.receptions import NotTaken, Receptions, ReceptionSlot
from holdfast_vault.peers.tls_link import is_readable
from holdfast_vault.shelf.common_chunks import chunks_in_common, has_chunk
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.shelves import Shelves

log = structlog.get_logger(__name__)


class PeerSession:
    """Serves one vault until it ends. `token` is the job's, `generation` that of this node's order."""

    def __init__(
        self,
        link: socket.socket,
        hello: messages.Hello,
        token: str,
        shelves: Shelves,
        receptions: Receptions,
        notices: Notices,
        generation: Callable[[], int],
    ) -> None:
        self._link = link
        self._hello = hello
        self._token = token
        self._shelves = shelves
        self._receptions = receptions
        self._notices = notices
        self._generation = generation
        self._slot: ReceptionSlot | None = None
        self._name: ShardName | None = None

    def run(self) -> None:
        """Answer until the other ends the connection or breaks it; raises WireError then."""
        try:
            while True:
                # There may be no question for long, and the kernel watches that the other side is still there.
                is_readable(self._link, None)
                self._serve()
        finally:
            self._leave()

    def _serve(self) -> None:
        match receive(self._link, messages.asks)[0]:
            case messages.Offer() as offer:
                send(self._link, self._offered(offer))
            case messages.ChunkHeader() as chunk:
                reply = self._take(chunk)
                if reply is not None:
                    send(self._link, reply)
            case messages.GoOn(name=name, cut=cut):
                self._shelf(name).keep_only(cut)
                send(self._link, messages.Understood())
            case messages.AskHashes() as question:
                send(self._link, self._hashes(question))
            case messages.AskWhich() as question:
                send(self._link, self._which(question))
            case messages.AskHeld(names=names):
                send(self._link, messages.Held(shards=tuple(map(self._held, names))))
            case messages.AskWhole() as question:
                send(self._link, self._whole(question))
            case messages.AskChunk() as question:
                self._hand_over(question)

    def _offered(self, offer: messages.Offer) -> messages.Reply:
        self._leave()
        mac = voucher(self._token, offer.name, offer.sealed, offer.index, offer.objects, offer.seal, offer.absent)
        if not hmac.compare_digest(offer.mac, mac):
            raise WireError(f"no vault of the job vouches for {offer.name}")
        if self._is_over():
            return Refused(reason=f"generation {self._hello.generation} is over")
        shelf = self._shelf(offer.name)
        with shelf.holding(offer.sealed) as held:
            # Less may be absent in this offer than in the held shard: then it is sent again.
            absent = unpacked(offer.absent, offer.seal.nbytes)
            if held is not None and held[1].seal == offer.seal and held[0].absent <= absent:
                return messages.Kept()
        slot = self._receptions.slot(offer.name)
        try:
            slot.enter(self._link)
            self._slot, self._name = slot, offer.name
            reception = slot.expect(shelf, offer)
            return messages.Want(first=reception.first_missing) if not reception.is_whole else self._finish()
        except NotTaken as error:
            return self._not_taken(error)

    def _take(self, chunk: messages.ChunkHeader) -> messages.Reply | None:
        reception = self._slot.reception if self._slot is not None else None
        if reception is None or self._name is None:
            # On its way before the offer was refused.
            receive_into(self._link, memoryview(bytearray(chunk.nbytes)))
            return None
        try:
            if reception.take(self._link, chunk):
                return messages.Good(number=chunk.number) if not reception.is_whole else self._finish()
        except NotTaken as error:
            return self._not_taken(error)
        detail = f"chunk {chunk.number} fails its checksum as it arrives"
        self._notices.publish(
            DamageNotice(name=self._name, sealed=reception.sealed, node=self._hello.node, detail=detail)
        )
        return messages.Again(number=chunk.number)

    def _finish(self) -> messages.Reply:
        assert self._slot is not None
        if self._is_over():
            raise NotTaken(f"generation {self._hello.generation} is over")
        self._slot.seal()
        self._leave()
        return messages.Kept()

    def _not_taken(self, error: NotTaken) -> Refused:
        log.warning("a copy is not taken", of=str(self._name), source=self._hello.node, reason=str(error))
        if self._slot is not None:
            self._slot.drop()
        self._leave()
        return Refused(reason=str(error))

    def _leave(self) -> None:
        if self._slot is not None:
            self._slot.leave()
        self._slot = self._name = None

    def _held(self, name: ShardName) -> messages.RankSteps:
        shelf = self._shelf(name)
        coming = self._receptions.partial(name)
        return messages.RankSteps(
            name=name,
            sealed=tuple(shelf.steps()),
            cut=shelf.cut,
            coming=coming.sealed if coming is not None else None,
            chunks=coming.chunks_here if coming is not None else 0,
        )

    def _whole(self, question: messages.AskWhole) -> messages.Reply:
        with self._shelf(question.name).holding(question.sealed) as held:
            if held is None:
                return Refused(reason=f"{question.sealed} is not here")
            segment, contents = held
            index, objects, seal = contents.index, contents.objects, contents.seal
            absent = packed(segment.absent)
            mac = voucher(self._token, question.name, question.sealed, index, objects, seal, absent)
            return messages.Whole(index=index, objects=objects, seal=seal, mac=mac, absent=absent)

    def _hashes(self, question: messages.AskHashes) -> messages.Reply:
        seal = self._shelf(question.name).wait_for(question.sealed, messages.SEAL_WAIT_S)
        return messages.Hashes(hashes=seal.chunks[question.first :: question.every] if seal is not None else ())

    def _which(self, question: messages.AskWhich) -> messages.Reply:
        found: set[int] = set()
        for rank in (question.name.rank, *question.alike):
            with self._shelf(msgspec.structs.replace(question.name, rank=rank)).holding(question.sealed) as held:
                if held is not None:
                    found.update(chunks_in_common(*held, question.hashes))
        return messages.Which(chunks=packed(found))

    def _hand_over(self, question: messages.AskChunk) -> None:
        number, name = question.number, question.name
        for rank in (name.rank, *question.alike):
            with self._shelf(msgspec.structs.replace(name, rank=rank)).holding(question.sealed) as held:
                if held is not None and has_chunk(*held, number, question.hash, is_looked_at=question.is_repeated):
                    send_chunk(self._link, held[0], number)
                    return
        send(self._link, messages.Lacks(number=number))

    def _is_over(self) -> bool:
        """Return True if the peer is of an older generation: its node may be cut off and not know of the new one."""
        return self._hello.generation < self._generation()

    def _shelf(self, name: ShardName) -> Shelf:
        hello = self._hello
        if (name.job, name.submitted_ms) != (hello.job, hello.submitted_ms) or not 0 <= name.rank < name.world_size:
            raise WireError(f"{name} is none of job {hello.job}")
        return self._shelves.of(name)
