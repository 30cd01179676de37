"""Somebody between two vaults puts other objects in the place of a shard's, with a seal that fits them."""

from __future__ import annotations

import socket
import threading

import msgspec
import numpy as np
import pytest

from holdfast.node.frames import WireError, receive, send
from holdfast.node.vault import seals
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault.assignments import Assignment, job_of
from holdfast_vault.notices import Notices
from holdfast_vault.peers import peer_messages
from holdfast_vault.peers.fetching import pull
from holdfast_vault.peers.fetching.pull import NotFetched, whole_of
from holdfast_vault.peers.handshake import voucher
from holdfast_vault.peers.peer_messages import Hello, Offer, Want, Whole
from holdfast_vault.peers.peer_session import PeerSession
from holdfast_vault.peers.receptions import Receptions
from holdfast_vault.shelf.shelves import Shelves

TOKEN = "the token of the job"
NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)
SEALED = SealedStep(generation=1, step=5)
DATA = np.arange(1000, dtype=np.uint8)


def offered(objects: bytes = b"objects") -> Offer:
    seal = seals.seal((b"index", objects), DATA)
    mac = voucher(TOKEN, NAME, SEALED, b"index", objects, seal)
    return Offer(name=NAME, sealed=SEALED, index=b"index", objects=objects, seal=seal, mac=mac)


def changed(offer: Offer) -> Offer:
    """As he can make it who does not know the token."""
    return msgspec.structs.replace(offered(b"others"), mac=offer.mac)


def whole(offer: Offer) -> Whole:
    return Whole(index=offer.index, objects=offer.objects, seal=offer.seal, mac=offer.mac)


@pytest.mark.parametrize(
    "other",
    [
        changed(offered()),
        msgspec.structs.replace(offered(), sealed=SealedStep(generation=1, step=6)),
        msgspec.structs.replace(offered(), name=msgspec.structs.replace(NAME, rank=1)),
    ],
)
def test_a_copy_that_was_changed_on_its_way_is_not_taken(other: Offer) -> None:
    shelves = Shelves()
    shelves.serve(job_of(NAME))
    hello = Hello(node="a", job="job", submitted_ms=1, generation=1, nonce=bytes(32))
    ours, theirs = socket.socketpair()
    session = PeerSession(theirs, hello, TOKEN, shelves, Receptions(), Notices(), lambda: 1)

    def serve() -> None:
        with pytest.raises(WireError):
            session.run()

    with ours, theirs:
        ours.settimeout(30)
        send(ours, other)
        with pytest.raises(WireError, match="vouches"):
            session.run()
        send(ours, offered())
        serving = threading.Thread(target=serve)
        serving.start()
        assert receive(ours, peer_messages.replies)[0] == Want(first=0)
        ours.shutdown(socket.SHUT_RDWR)
        serving.join()
    shelves.close()


def test_a_shard_that_was_changed_on_its_way_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"first": whole(changed(offered())), "second": whole(offered())}

    def dial(source: VaultAddress, *_: object) -> socket.socket:
        ours, theirs = socket.socketpair()

        def answer() -> None:
            with theirs:
                receive(theirs, peer_messages.asks)
                send(theirs, replies[source.node])

        threading.Thread(target=answer).start()
        return ours

    monkeypatch.setattr(pull, "dial", dial)
    order = BackupOrder(node="a", job="job", submitted_ms=1, world_size=2, generation=2, node_rank=0, nproc_per_node=1)
    sources = [VaultAddress(node=node, host="h", port=1) for node in replies]
    assert whole_of(NAME, SEALED, sources, Assignment(order, TOKEN)) == (replies["second"], sources[1:])
    with pytest.raises(NotFetched, match="first: no vault of the job vouches"):
        whole_of(NAME, SEALED, sources[:1], Assignment(order, TOKEN))
