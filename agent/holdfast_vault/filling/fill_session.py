"""A connection over which a rank fills segments itself: its accelerator writes to memory that outlives the rank.

This thread hashes what has come, and behind it the rank's next messages wait. So nothing here holds up a rank: it sends
and does not wait for an answer, until all has come.
"""

from __future__ import annotations

import os
import select
import socket
import threading

import structlog

from holdfast.node.frames import WireError, receive, send
from holdfast.node.vault.messages import (
    Abandon,
    Done,
    Fill,
    Filled,
    Fills,
    Lay,
    Refused,
    Room,
    SealedStep,
    requests,
)
from holdfast.node.vault.vault_socket import peer_ids, peer_pid
from holdfast_vault.filling.filling import Filling, OutOfOrder
from holdfast_vault.node_vault import NodeVault, NotTheirs
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.stocking import claim, stock_and_settle

log = structlog.get_logger(__name__)


class FillSession:
    def __init__(self, link: socket.socket, node: NodeVault, first: Fills) -> None:
        self._link = link
        self._node = node
        self._first = first
        self._lay: Lay | None = None
        self._filling: Filling | None = None
        self._poll = select.poll()

    def run(self) -> None:
        """Answer until the rank closes the connection, which raises WireError as any break of the protocol does."""
        try:
            shelf = self._node.join(self._first.name, *peer_ids(self._link))
        except NotTheirs as error:
            send(self._link, Refused(reason=str(error)))
            return
        try:
            rank = os.pidfd_open(peer_pid(self._link))
        except ProcessLookupError as error:
            raise WireError("the rank has ended") from error
        self._poll.register(rank, select.POLLIN)
        self._poll.register(self._link, select.POLLIN)
        send(self._link, Done())
        try:
            while True:
                self._follow(shelf)
        finally:
            os.close(rank)
            self._lose(shelf)

    def _follow(self, shelf: Shelf) -> None:
        self._await()
        request, descriptor = receive(self._link, requests)
        if descriptor is not None:
            os.close(descriptor)
        match request:
            case Lay():
                self._lay, shelf.numa_node = request, request.numa_node
                send(self._link, Done())
            case Fill():
                self._fill(request, shelf)
            case Filled():
                self._reach(request.up_to, shelf)
            case Abandon():
                if self._filling is not None:
                    shelf.put_back(self._filling.segment)
                    self._end(shelf)
                send(self._link, Done())
            case _:
                raise WireError(f"{type(request).__name__} has no place on a connection that fills segments")

    def _await(self) -> None:
        """Return when the rank has sent something. Raises WireError: it has ended, with all that it sent received.

        Processes that it forked, such as those that load data, may hold its end of the connection open.
        """
        if self._link.fileno() not in dict(self._poll.poll()):
            raise WireError("the rank has ended")

    def _fill(self, request: Fill, shelf: Shelf) -> None:
        lay = self._lay
        if lay is None or self._filling is not None:
            raise WireError("a rank must lay its tensors first, and fill one step at a time")
        shelf.turn.acquire()
        waits = shelf.answers_when_sealed()
        sealed = SealedStep(step=request.step, generation=self._first.generation)
        try:
            segment = claim(shelf, lay.nbytes, self._node.persister.give_way)
        except BaseException as error:
            shelf.turn.release()
            if not isinstance(error, OSError):
                raise
            reason = error.strerror or str(error)
            self._node.interruptions.not_kept(self._first.name, sealed, reason)
            send(self._link, Refused(reason=f"step {request.step} of {lay.nbytes} bytes is not kept: {reason}"))
            return
        self._filling = Filling(segment, sealed, lay.index, request.objects)
        room = Room(files=tuple(shelf.files()), is_settled=segment.is_settled, waits=waits)
        send(self._link, room, segment.descriptor)

    def _reach(self, up_to: int, shelf: Shelf) -> None:
        filling = self._filling
        if filling is None:
            raise WireError("progress of a step that is not being filled")
        try:
            filling.reach(up_to)
        except OutOfOrder as error:
            raise WireError(str(error)) from error
        if not filling.is_whole:
            return
        is_kept = shelf.seal(filling.segment, filling.contents())
        if is_kept:
            self._node.sealed(self._first.name, filling.sealed, self._first.persist_to)
        self._end(shelf)
        send(self._link, Done() if is_kept else Refused(reason=f"the job has abandoned {filling.sealed}"))
        try:
            threading.Thread(target=stock_and_settle, args=(shelf, filling.segment)).start()
        except RuntimeError as error:
            log.warning("no further segments yet", of=str(self._first.name), reason=str(error))

    def _end(self, shelf: Shelf) -> None:
        self._filling = None
        shelf.turn.release()

    def _lose(self, shelf: Shelf) -> None:
        """Give up what is being filled: the rank has ended, but its device may not have."""
        if self._filling is not None:
            step = self._filling.sealed.step
            log.warning("a step was not filled to its end", of=str(self._first.name), step=step)
            shelf.discard(self._filling.segment)
            self._end(shelf)
