"""Sends copies of this node's shards to another node, as they are sealed and as fast as they may go."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import structlog

from holdfast.node.frames import WireError, receive
from holdfast.node.vault.messages import BackedUp, CopiesRefusal, Refused, ShardName
from holdfast.node.vault.seals import Seal, chunk_bytes
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.cuts import Cut
from holdfast_vault.notices import Notices
from holdfast_vault.pacing import Pacing
from holdfast_vault.peers.chunk_sets import packed
from holdfast_vault.peers.chunk_transfer import send_chunk
from holdfast_vault.peers.handshake import voucher
from holdfast_vault.peers.peer_link import PeerRefused, ask, dial
from holdfast_vault.peers.peer_messages import Again, Good, GoOn, Kept, Offer, Want, replies
from holdfast_vault.peers.sending.backlog import Backlog, WaitingCopy
from holdfast_vault.peers.sending.replicas import Replicas
from holdfast_vault.peers.tls_link import NotTrusted, is_readable, needs_new_keys
from holdfast_vault.shelf.segments import Segment, bytes_taken
from holdfast_vault.shelf.shelves import Shelves

WINDOW = 8
"""Chunks on the way that have not been acknowledged: enough to fill the network, and soon sent again if it breaks."""
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 0.05, 0.5
"""Until the keeper is back, what this node alone holds is lost with it: so the other vault is looked for often."""
REFUSED_S = 5.0

log = structlog.get_logger(__name__)


class Sender:
    """The sending side to one other vault: it gets the ranks' cuts and, if it is their keeper, their copies."""

    def __init__(
        self, address: VaultAddress, assignment: Assignment, shelves: Shelves, notices: Notices, pacing: Pacing
    ) -> None:
        self._address = address
        self._assignment = assignment
        self._shelves = shelves
        self._notices = notices
        self._pacing = pacing
        self._changed = threading.Condition()
        self._backlog = Backlog()
        self._held: dict[WaitingCopy, Segment] = {}
        self._cuts: dict[ShardName, Cut] = {}
        self._unsent_cuts: set[ShardName] = set()
        self._begun: tuple[WaitingCopy, Seal, frozenset[int], float] | None = None
        self._replicas = Replicas(assignment, shelves)
        self._link: socket.socket | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, copy: WaitingCopy) -> None:
        """Send this when its turn comes; until then it stays in memory."""
        segment = self._shelves.of(copy.name).hold(copy.sealed)
        if segment is None:
            return
        with self._changed:
            if self._ended.is_set() or copy in self._held:
                self._shelves.of(copy.name).let_go(segment)
                return
            self._held[copy] = segment
            self._backlog.add(copy)
            self._let_go(self._backlog.take_dropped())
            self._changed.notify_all()

    def send_cut(self, name: ShardName, cut: Cut) -> None:
        """Send a rank's cut before anything else."""
        with self._changed:
            self._cuts[name] = cut
            self._unsent_cuts.add(name)
            self._changed.notify_all()

    def end(self) -> None:
        """Stop at once; what was not sent is not sent any more."""
        with self._changed:
            self._ended.set()
            self._let_go(list(self._held))
            self._changed.notify_all()
            if self._link is not None:
                _end(self._link)
        self._replicas.close()

    def _run(self) -> None:
        back_off_s, reported = BACK_OFF_S_MIN, ""
        while self._wait_for_work():
            try:
                with self._connection() as link:
                    while self._wait_for_work() and not needs_new_keys(link):
                        # The keeper may be refused since.
                        self._assignment.trust.identify(link, self._address.node)
                        self._work(link)
                        back_off_s, reported = BACK_OFF_S_MIN, ""
            except WireError as error:
                if self._ended.is_set():
                    return
                if str(error) != reported:
                    log.warning("copies are held up", keeper=self._address.node, reason=str(error))
                    reported = str(error)
                    if isinstance(error, NotTrusted):
                        self._report_refusal(reported)
                # A certificate is not renewed from one moment to the next.
                self._ended.wait(REFUSED_S if isinstance(error, NotTrusted) else back_off_s)
                back_off_s = min(2 * back_off_s, BACK_OFF_S_MAX)

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        link = dial(self._address, self._assignment)
        with self._changed:
            self._link = link
            # The other vault may have restarted since it received them.
            self._unsent_cuts = set(self._cuts)
            if self._ended.is_set():
                _end(link)
        try:
            yield link
        finally:
            with self._changed:
                self._link = None
            link.close()

    def _wait_for_work(self) -> bool:
        """Wait for something to send; return False when the sender ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended.is_set() or self._unsent_cuts or self._next())
            return not self._ended.is_set()

    def _next(self) -> WaitingCopy | None:
        copy = self._backlog.next()
        self._let_go(self._backlog.take_dropped())
        return copy

    def _work(self, link: socket.socket) -> None:
        with self._changed:
            name = next(iter(self._unsent_cuts), None)
            cut = self._cuts[name] if name is not None else None
            copy = self._next() if name is None else None
        if name is not None and cut is not None:
            ask(link, GoOn(name=name, cut=cut))
            with self._changed:
                if self._cuts[name] == cut:
                    self._unsent_cuts.discard(name)
        elif copy is not None:
            self._send(link, copy)

    def _send(self, link: socket.socket, copy: WaitingCopy) -> None:
        with self._changed:
            segment = self._held.get(copy)
            contents = segment.contents if segment is not None else None
        try:
            if segment is None or contents is None or segment.absent:
                raise PeerRefused("the job has left it behind")
            if self._begun is None or self._begun[:2] != (copy, contents.seal):
                absent = self._replicas.sent_by_others(copy.name, copy.sealed, contents.seal)
                # Waiting for replicas takes nothing of the network.
                self._begun = copy, contents.seal, absent, time.monotonic()
            *_, absent, began = self._begun
            shard = {**msgspec.structs.asdict(contents), "absent": packed(absent)}
            mac = voucher(self._assignment.token, copy.name, **shard)
            reply = ask(link, Offer(name=copy.name, **shard, mac=mac))
            if isinstance(reply, Want):
                chunks = range(reply.first, len(contents.seal.chunks))
                self._stream(link, segment, [number for number in chunks if number not in absent])
            elif not isinstance(reply, Kept):
                raise WireError(f"an offer was answered by {type(reply).__name__}")
        except PeerRefused as error:
            log.warning("a copy is not sent", of=str(copy), keeper=self._address.node, reason=str(error))
            with self._changed:
                if copy in self._held:
                    self._backlog.drop(copy)
                    self._let_go(self._backlog.take_dropped())
            return
        self._begun = None
        self._note_sent(copy, contents.seal.nbytes, absent, time.monotonic() - began)

    def _stream(self, link: socket.socket, segment: Segment, chunks: Sequence[int]) -> None:
        """Send chunks until the other has all of them."""
        waiting, on_the_way = deque(chunks), 0
        while True:
            if waiting and on_the_way < WINDOW:
                number = waiting.popleft()
                self._keep_pace(chunk_bytes(segment.nbytes, number))
                send_chunk(link, segment, number)
                on_the_way += 1
                if not is_readable(link):
                    continue
            reply, _ = receive(link, replies)
            on_the_way -= 1
            match reply:
                case Kept():
                    return
                case Again(number=number):
                    waiting.appendleft(number)
                case Refused(reason=reason):
                    raise PeerRefused(reason)
                case Good():
                    pass
                case _:
                    raise WireError(f"a chunk was answered by {type(reply).__name__}")

    def _keep_pace(self, nbytes: int) -> None:
        while pause_s := self._pacing.pause_s(time.monotonic()):
            self._ended.wait(pause_s)
        if wait_s := self._pacing.wait_s(nbytes, time.monotonic()):
            self._ended.wait(wait_s)

    def _note_sent(self, copy: WaitingCopy, nbytes: int, absent: frozenset[int], took_s: float) -> None:
        with self._changed:
            if copy not in self._held:
                return
            skipped = self._backlog.done(copy)
            self._shelves.of(copy.name).note_sent(copy.sealed)
            self._let_go([copy])
        self._notices.publish(
            BackedUp(
                name=copy.name,
                sealed=copy.sealed,
                keeper=self._address.node,
                nbytes=bytes_taken(nbytes, absent),
                nbytes_shared=nbytes - bytes_taken(nbytes, absent),
                took_s=took_s,
                skipped=skipped,
            )
        )

    def _report_refusal(self, reason: str) -> None:
        name = self._assignment.shard_of(self._assignment.order.ranks.start)
        self._notices.publish(CopiesRefusal(name=name, keeper=self._address.node, reason=reason))

    def _let_go(self, copies: Iterable[WaitingCopy]) -> None:
        for copy in copies:
            if (segment := self._held.pop(copy, None)) is not None:
                self._shelves.of(copy.name).let_go(segment)


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
