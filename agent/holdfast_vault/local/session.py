"""One connection to the vault from its own node: a thread that answers a rank's requests, or the agent's, in order."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from holdfast.node.frames import WireError, receive, send
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.node.vault.messages import (
    Abandon,
    Answer,
    AskCertified,
    AskFormer,
    AskShard,
    AskSteps,
    Assign,
    Certified,
    Done,
    End,
    Fill,
    Filled,
    Fills,
    Follow,
    Former,
    Join,
    KeepOnly,
    Lay,
    OfAgent,
    PersistTo,
    Refused,
    Repair,
    Request,
    Save,
    SealedShard,
    SealedStep,
    Serve,
    Steps,
    requests,
)
from holdfast.node.vault.seals import seal
from holdfast.node.vault.vault_socket import is_peer_ours, peer_ids
from holdfast_vault.assignments import Assignment
from holdfast_vault.filling.fill_session import FillSession
from holdfast_vault.node_vault import NodeVault, NotTheirs
from holdfast_vault.peers.fetching.pull import NotFetched
from holdfast_vault.shelf.held_process import HeldProcess, Piece, SourceLost
from holdfast_vault.shelf.memory_snapshot import CopyLayout, MemorySnapshot, layout_problem, protect
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.stocking import claim, settle, stock

log = structlog.get_logger(__name__)


class _BegunSave(NamedTuple):
    """A save whose segment is taken, but not sealed. It has the shelf's turn until `finish` is over."""

    finish: Callable[[], None]
    shelf: Shelf
    segment: Segment


class LocalSession:
    """The vault's side of one connection: what its rank has joined with, laid out and begun to save."""

    def __init__(self, link: socket.socket, node: NodeVault, copy_threads: int) -> None:
        self._link = link
        self._node = node
        self._copy_threads = copy_threads
        self._joined: tuple[Join, Shelf] | None = None
        self._source: HeldProcess | None = None
        self._userfault: int | None = None
        self._ledger: LedgerReader | None = None
        self._lay: Lay | None = None
        self._layout: CopyLayout | None = None
        self._persist_to: PersistTo | None = None
        self._handed_out: Segment | None = None
        self._begun: _BegunSave | None = None
        self._writers_waited_s = 0.0
        """Seconds for which writers waited in the last save that was copied beside training."""

    def run(self) -> None:
        """Answer until the other end closes the connection or breaks the protocol."""
        try:
            while True:
                request, descriptor = receive(self._link, requests)
                if isinstance(request, OfAgent) and not is_peer_ours(self._link):
                    raise WireError("only the agent may ask this")
                if isinstance(request, Fills):
                    if descriptor is not None:
                        os.close(descriptor)
                    FillSession(self._link, self._node, request).run()
                    return
                if isinstance(request, Follow):
                    self._node.notices.send_to(self._link)
                    return
                if isinstance(request, End):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                answer, beside = self._answer(request, descriptor)
                try:
                    send(self._link, answer, beside)
                finally:
                    self._finish_save()
        except WireError as error:
            of = self._joined[0] if self._joined else "no rank"
            log.info("a connection ended", reason=str(error), of=str(of))
        finally:
            self._link.close()
            self._leave_ledger()
            self._drop_userfault()
            if self._joined is not None:
                # The rank's next process asks for the newest step: it is checked while that process starts.
                self._node.checks.ahead(self._joined[1])

    def _answer(self, request: Request, descriptor: int | None) -> tuple[Answer, int | None]:
        if descriptor is not None and not isinstance(request, Join):
            os.close(descriptor)
        match request:
            case Join():
                return self._join(request, descriptor), None
            case Lay():
                self._lay = self._layout = None
                if problem := layout_problem(request.nbytes, request.pieces):
                    return Refused(reason=problem), None
                self._lay = request
                self._layout = CopyLayout([Piece(*piece) for piece in request.pieces], request.protected)
                return Done(), None
            case Save():
                return self._save(request), None
            case AskSteps():
                return self._steps(request.at_most), None
            case AskFormer():
                former = self._node.former
                return Former(world_size=former.world_size, sealed=former.steps()) if former else Former(), None
            case AskShard() if request.of_former:
                return self._former_shard(request.sealed)
            case AskShard():
                return self._shard(request)
            case Repair():
                return self._repair(request), None
            case KeepOnly():
                joined, shelf = self._rank()
                with shelf.turn:
                    self._node.go_on(joined.name, joined.generation, request.sealed, from_disk=request.from_disk)
                return Done(), None
            case PersistTo():
                # For what this connection saves: a rank may have another for steps that it only restores.
                self._persist_to = request
                return Done(), None
            case AskCertified():
                return Certified(up_to=self._node.certified_up_to(self._rank()[0].name)), None
            case Assign():
                reason = self._node.assign(Assignment(request.order, request.token, self._node.trust))
                return Done() if reason is None else Refused(reason=reason), None
            case Serve():
                self._node.serve(request)
                return Done(), None
            case Follow() | End():
                raise AssertionError("these have no answer")
            case Fills() | Fill() | Filled() | Abandon():
                raise WireError("a connection that fills segments begins with that")

    def _join(self, request: Join, descriptor: int | None) -> Answer:
        self._drop_userfault()
        try:
            self._source = self._source or HeldProcess.at(self._link)
        except ProcessLookupError as error:
            if descriptor is not None:
                os.close(descriptor)
            return Refused(reason=str(error))
        if request.pid != self._source.pid:
            # Its memory would be read: only the process at the other end may offer its own.
            if descriptor is not None:
                os.close(descriptor)
            return Refused(reason=f"process {request.pid} is not the one that asks")
        self._leave_ledger()
        if self._joined is not None and self._joined[0].name == request.name:
            # The node may serve another job by now: a rank that only reports where its memory is must not take it back.
            self._joined = request, self._joined[1]
        else:
            try:
                self._joined = request, self._node.join(request.name, *peer_ids(self._link))
            except NotTheirs as error:
                if descriptor is not None:
                    os.close(descriptor)
                return Refused(reason=str(error))
        self._ledger = self._node.ledgers.watch(request.name, request.ledger)
        self._userfault = descriptor
        return Done()

    def _leave_ledger(self) -> None:
        if self._joined is not None:
            self._node.ledgers.leave(self._joined[0].name, self._ledger)

    def _drop_userfault(self) -> None:
        """Close the descriptor of the rank's memory once nothing is copied from it. Writers that wait then go on."""
        if self._userfault is not None:
            with self._rank()[1].turn:
                os.close(self._userfault)
            self._userfault = None

    def _rank(self) -> tuple[Join, Shelf]:
        if self._joined is None:
            raise WireError("a rank must first send its name")
        return self._joined

    def _steps(self, at_most: int | None) -> Answer:
        joined, shelf = self._rank()
        with shelf.turn:
            sealed: Sequence[SealedStep] = shelf.steps()
        # Of copies that this node kept before it got the rank, replicas may have a part.
        whole = [each for each in sealed if shelf.has_whole(each)]
        recent = [each for each in whole if each.generation >= joined.generation - 1]
        is_here = any(at_most is None or each.step <= at_most for each in recent)
        # A first generation has nothing anywhere. A node that the job went on without since may find newer steps there.
        if joined.generation > 1 and not (is_here and shelf.has_common_step(recent)):
            sealed = self._node.fetcher.steps(joined.name, joined.generation, at_most)
        return Steps(sealed=tuple(sealed), newest_made=shelf.newest_made)

    def _save(self, request: Save) -> Answer:
        joined, shelf = self._rank()
        lay, layout = self._lay, self._layout
        assert self._source is not None, "it has joined"
        if lay is None or layout is None:
            return Refused(reason="the tensors of this rank have not been laid out")
        # Waits until the save before is sealed, be it of this rank's life or of the one before. The thread that seals
        # this one gives the turn back (`_seal_in_turn`).
        shelf.turn.acquire()
        waited_s, self._writers_waited_s = self._writers_waited_s, 0.0
        is_over = threading.Event() if shelf.answers_when_sealed() else None
        segment: Segment | None = None
        try:
            segment = claim(shelf, lay.nbytes, self._node.persister.give_way)
            if self._userfault is None:
                self._source.read(layout.pieces, segment.memory)
                sealing = partial(self._seal, segment, request, lay.index)
            else:
                protect(self._source, self._userfault, layout)
                sealing = partial(
                    self._copy_and_seal, self._source, self._userfault, layout, segment, request, lay.index
                )
        except BaseException as error:
            if segment is not None:
                shelf.put_back(segment)
            shelf.turn.release()
            if not isinstance(error, (OSError, SourceLost)):
                raise
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if isinstance(error, OSError):
                sealed = SealedStep(step=request.step, generation=joined.generation)
                self._node.interruptions.not_kept(joined.name, sealed, reason)
            return Refused(reason=f"step {request.step} of {lay.nbytes} bytes is not kept: {reason}")
        if is_over is not None:
            sealing = partial(_run_and_set, sealing, is_over)
        finish = partial(self._seal_in_turn, shelf, segment, sealing, request.step)
        self._begun = _BegunSave(finish, shelf, segment)
        if is_over is not None:
            self._finish_save()
            is_over.wait()
        return Done(writers_waited_s=waited_s)

    def _finish_save(self) -> None:
        """Have a thread finish the begun save, if there is one. It is started after the answer, because that takes a
        while; before it only where the rank has to wait until the step is sealed."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            threading.Thread(target=_finish_and_settle, args=(begun,)).start()
        except RuntimeError as error:
            log.warning("a rank waits for its save", of=str(self._rank()[0]), reason=str(error))
            begun.finish()

    def _seal_in_turn(self, shelf: Shelf, segment: Segment, sealing: Callable[[], None], step: int) -> None:
        """Seal a save, make room for the next one, and give the shelf's turn back that `_save` has taken."""
        try:
            sealing()
        except BaseException as error:
            shelf.put_back(segment)
            if not isinstance(error, (OSError, RuntimeError)):
                raise
            log.warning("a save was not completed", of=str(self._rank()[0]), step=step, reason=str(error))
        else:
            stock(shelf, segment.nbytes)
        finally:
            shelf.turn.release()

    def _copy_and_seal(
        self,
        source: HeldProcess,
        descriptor: int,
        layout: CopyLayout,
        segment: Segment,
        request: Save,
        index: bytes,
    ) -> None:
        snapshot = MemorySnapshot(source, descriptor, layout, segment.memory)
        hashes = snapshot.copy(self._copy_threads)
        self._writers_waited_s = snapshot.writers_waited_s
        self._seal(segment, request, index, hashes)

    def _seal(self, segment: Segment, request: Save, index: bytes, hashes: tuple[int, ...] | None = None) -> None:
        """Put the sealed step on the shelf. `hashes`: those of its chunks that are known already."""
        joined, shelf = self._rank()
        sealed = SealedStep(step=request.step, generation=joined.generation)
        notes = index, request.objects
        contents = SealedContents(
            sealed=sealed, index=index, objects=request.objects, seal=seal(notes, segment.memory, hashes)
        )
        if shelf.seal(segment, contents):
            self._node.sealed(joined.name, sealed, self._persist_to)

    def _repair(self, request: Repair) -> Answer:
        joined, shelf = self._rank()
        try:
            self._node.fetcher.repair(joined.name, request.sealed, joined.generation)
            with shelf.holding(request.sealed) as held:
                if held is not None:
                    self._node.checks.forget(held[0])
        except NotFetched as error:
            return Refused(reason=f"{request.sealed} of this rank is damaged, and cannot be repaired: {error}")
        return Done()

    def _shard(self, request: AskShard) -> tuple[Answer, int | None]:
        joined, shelf = self._rank()
        with shelf.turn:
            is_here = shelf.has_whole(request.sealed)
        try:
            if not is_here:
                self._node.fetcher.fetch(joined.name, request.sealed, joined.generation)
        except NotFetched as error:
            return Refused(reason=f"{request.sealed} of this rank is not sealed here, nor to be had: {error}"), None
        with shelf.holding(request.sealed) as held:
            if held is None:
                return Refused(reason=f"{request.sealed} of this rank is not here any more"), None
            # Its descriptor is good until it has been sent, whatever happens to the shelf.
            self._handed_out, contents = held
            if self._handed_out.absent:
                return Refused(reason=f"{request.sealed} of this rank is not here whole any more"), None
            # What was fetched just now was compared as it came.
            damaged = self._node.checks.damaged(*held) if is_here else ()
            return SealedShard(**msgspec.structs.asdict(contents), damaged=damaged), self._handed_out.descriptor

    def _former_shard(self, sealed: SealedStep) -> tuple[Answer, int | None]:
        former = self._node.former
        found = former.segment(sealed) if former is not None else None
        if found is None:
            return Refused(reason=f"{sealed} of another size of the job is not here any more"), None
        self._handed_out, contents = found
        damaged = self._node.checks.damaged(*found)
        return SealedShard(**msgspec.structs.asdict(contents), damaged=damaged), self._handed_out.descriptor


def _finish_and_settle(begun: _BegunSave) -> None:
    """Run on a separate thread: nothing waits for the second part, which the next save may overtake."""
    begun.finish()
    settle(begun.shelf, begun.segment)


def _run_and_set(work: Callable[[], None], is_over: threading.Event) -> None:
    try:
        work()
    finally:
        is_over.set()
