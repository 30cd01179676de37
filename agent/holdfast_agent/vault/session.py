"""One rank's connection to the vault: a thread that answers its requests, one after the other."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from holdfast.seals import seal
from holdfast.vault_socket import peer_pid
from holdfast.vault_wire import (
    Answer,
    AskShard,
    AskSteps,
    Assign,
    Done,
    Follow,
    Join,
    KeepOnly,
    Lay,
    Refused,
    Request,
    Save,
    SealedStep,
    Shard,
    ShardName,
    Steps,
    VaultWireError,
    receive_request,
    send,
)
from holdfast_agent.vault.segments import Contents, Segment, Shelf
from holdfast_agent.vault.snapshot import Layout, Piece, Snapshot, SourceLost, read_memory

log = structlog.get_logger(__name__)


class Session:
    """Serves one rank until it ends. `shelf_of` gives its memory; `on_sealed` is told of every step that is whole."""

    def __init__(
        self,
        link: socket.socket,
        shelf_of: Callable[[ShardName], Shelf],
        on_sealed: Callable[[ShardName, Contents], None],
        copy_threads: int,
    ) -> None:
        self._link = link
        self._shelf_of = shelf_of
        self._on_sealed = on_sealed
        self._copy_threads = copy_threads
        self._joined: Join | None = None
        self._userfault: int | None = None
        self._lay: Lay | None = None
        self._layout: Layout | None = None

    def run(self) -> None:
        """Answer until the rank ends or speaks nonsense."""
        try:
            while True:
                request, descriptor = receive_request(self._link)
                answer, beside = self._answer(request, descriptor)
                send(self._link, answer, beside)
        except VaultWireError as error:
            log.info("a rank's connection ended", reason=str(error), of=str(self._joined))
        finally:
            self._link.close()
            self._drop_userfault()

    def _answer(self, request: Request, descriptor: int | None) -> tuple[Answer, int | None]:
        if descriptor is not None and not isinstance(request, Join):
            os.close(descriptor)
        match request:
            case Join():
                return self._join(request, descriptor), None
            case Lay():
                self._lay = request
                self._layout = Layout([Piece(*piece) for piece in request.pieces], request.protected)
                return Done(), None
            case Save():
                return self._save(request), None
            case AskSteps():
                shelf = self._shelf()
                with shelf.turn:
                    whole = [segment.contents for segment in shelf.sealed()]
                return Steps(sealed=tuple(contents.sealed for contents in whole if contents)), None
            case AskShard():
                return self._shard(request)
            case KeepOnly():
                shelf = self._shelf()
                with shelf.turn:
                    shelf.keep_only(request.sealed)
                return Done(), None
            case Assign() | Follow():
                return Refused(reason="this vault serves no other vaults yet"), None

    def _join(self, request: Join, descriptor: int | None) -> Answer:
        self._drop_userfault()
        if request.pid != peer_pid(self._link):
            # Its memory would be read: only the process at the other end may offer its own.
            if descriptor is not None:
                os.close(descriptor)
            return Refused(reason=f"process {request.pid} is not the one that asks")
        self._joined, self._userfault = request, descriptor
        return Done()

    def _drop_userfault(self) -> None:
        """Let go of the rank's memory, once nothing is copied of it. Whoever waits to write to it then goes on."""
        if self._userfault is not None:
            with self._shelf().turn:
                os.close(self._userfault)
            self._userfault = None

    def _shelf(self) -> Shelf:
        if self._joined is None:
            raise VaultWireError("a rank must say first who it is")
        return self._shelf_of(self._joined.name)

    def _save(self, request: Save) -> Answer:
        shelf, joined, lay, layout = self._shelf(), self._joined, self._lay, self._layout
        if joined is None or lay is None or layout is None:
            return Refused(reason="the tensors of this rank have not been laid out")
        # Waits until the save before is sealed, be it of this rank's life or of the one before.
        shelf.turn.acquire()
        try:
            segment = shelf.empty(lay.nbytes)
            sealing = partial(self._seal, segment, request, joined, lay.index)
            if self._userfault is None:
                read_memory(joined.pid, layout.pieces, segment.memory)
            else:
                snapshot = Snapshot(joined.pid, self._userfault, layout, segment.memory)
                snapshot.begin()
                sealing = partial(self._copy_and_seal, snapshot, sealing, request.step)
        except (OSError, SourceLost) as error:
            shelf.turn.release()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Refused(reason=f"step {request.step} of {lay.nbytes} bytes is not kept: {reason}")
        threading.Thread(target=_seal_in_turn, args=(shelf, sealing, lay.nbytes)).start()
        return Done()

    def _copy_and_seal(self, snapshot: Snapshot, seal_it: Callable[[], None], step: int) -> None:
        try:
            snapshot.copy(self._copy_threads)
        except SourceLost as error:
            log.warning("a save was not completed", of=str(self._joined), step=step, reason=str(error))
        else:
            seal_it()

    def _seal(self, segment: Segment, request: Save, joined: Join, index: bytes) -> None:
        segment.contents = Contents(
            sealed=SealedStep(step=request.step, generation=joined.generation),
            index=index,
            objects=request.objects,
            seal=seal((index, request.objects), segment.memory),
        )
        self._on_sealed(joined.name, segment.contents)

    def _shard(self, request: AskShard) -> tuple[Answer, int | None]:
        shelf = self._shelf()
        with shelf.turn:
            segment = shelf.find(request.sealed)
        if segment is None or segment.contents is None:
            return Refused(reason=f"{request.sealed} of this rank is not sealed here"), None
        return Shard(**msgspec.structs.asdict(segment.contents)), segment.descriptor


def _seal_in_turn(shelf: Shelf, sealing: Callable[[], None], nbytes: int) -> None:
    try:
        sealing()
        shelf.stock(nbytes)
    except OSError as error:
        log.warning("no memory for further segments", nbytes=nbytes, reason=error.strerror)
    finally:
        shelf.turn.release()
