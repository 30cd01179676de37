"""Which copies a node takes for those of a keeper of before."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.vault import seals
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.limits import VaultLimits
from holdfast_vault.node_vault import NodeVault
from holdfast_vault.peers.handshake import voucher
from holdfast_vault.peers.peer_messages import Offer
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf

NBYTES = 2 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeVault]:
    it = NodeVault(tmp_path, "127.0.0.1", VaultLimits())
    yield it
    it.close()


def named(rank: int) -> ShardName:
    return ShardName(job="job", submitted_ms=1, world_size=3, rank=rank)


def assign(node: NodeVault, generation: int, **other: Any) -> None:
    given = {"nproc_per_node": 1, **other}
    order = BackupOrder(node="a", job="job", submitted_ms=1, world_size=3, generation=generation, node_rank=0, **given)
    assert node.assign(Assignment(order, "token")) is None


def fill(shelf: Shelf, step: int, generation: int) -> None:
    segment = shelf.claim(NBYTES)
    sealed = SealedStep(step=step, generation=generation)
    shelf.seal(segment, SealedContents(sealed=sealed, index=b"", objects=b"", seal=seals.seal((), segment.memory)))


def test_who_goes_on_from_the_disk_leaves_the_certified_step_behind_it_in_place(node: NodeVault) -> None:
    assign(node, 1, certified_step=2, certified_generation=1)
    shelf = node.join(named(0))
    for step in (2, 5, 8, 9):
        fill(shelf, step, 1)
    node.go_on(named(0), 2, SealedStep(generation=1, step=5), from_disk=True)
    assert shelf.steps() == [SealedStep(generation=1, step=2)]
    assert shelf.cut is not None and shelf.cut.kept is None
    # What it went on from lies before that one: then it is of an abandoned past as well.
    node.go_on(named(0), 3, SealedStep(generation=1, step=1), from_disk=True)
    assert shelf.steps() == []


def test_copies_are_left_once_they_have_been_sent_where_the_present_generation_wants_them(node: NodeVault) -> None:
    names = [named(rank) for rank in range(3)]
    keeper = VaultAddress(node="b", host="127.0.0.1", port=1)
    assign(node, 2, keeper=keeper, keeps=(1,))
    shelf = node.join(names[0])
    for step, generation in ((5, 1), (6, 2)):
        fill(shelf, step, generation)
    # A recovery may need them all: of this generation's steps none may be whole elsewhere.
    assert node._left(names) == ()
    shelf.note_sent(SealedStep(step=5, generation=1))
    assert node._left(names) == ()
    shelf.note_sent(SealedStep(step=6, generation=2))
    # Whether the node whose copies are kept here has begun to send them, or heard of it, makes no difference.
    assert node._left(names) == [names[2]]


def test_who_sends_to_nobody_goes_by_what_it_has_sealed(node: NodeVault) -> None:
    assign(node, 2)
    assert node._left([named(1)]) == ()
    fill(node.join(named(0)), 6, 2)
    assert node._left([named(1)]) == [named(1)]


def test_of_many_ranks_all_have_to_have_sent_a_step(node: NodeVault) -> None:
    keeper = VaultAddress(node="b", host="127.0.0.1", port=1)
    assign(node, 1, keeper=keeper, keeps=(), nproc_per_node=2)
    node.join(named(0)).note_sent(SealedStep(step=6, generation=1))
    assert node._left([named(2)]) == ()
    node.join(named(1)).note_sent(SealedStep(step=6, generation=1))
    assert node._left([named(2)]) == [named(2)]


def test_what_is_half_here_of_them_is_dropped_unless_it_is_just_coming(node: NodeVault) -> None:
    assign(node, 1)
    fill(node.join(named(0)), 5, 1)
    shelf, slot = node.join(named(1)), node._receptions.slot(named(1))
    data = seals.seal((b"", b""), shelf.claim(NBYTES).memory)
    sealed = SealedStep(step=5, generation=1)
    mac = voucher("token", named(1), sealed, b"", b"", data)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        slot.enter(theirs)
        slot.expect(shelf, Offer(name=named(1), sealed=sealed, index=b"", objects=b"", seal=data, mac=mac))
        assert node._left([named(1)]) == [named(1)]
        assert node._receptions.partial(named(1)) is not None
        slot.leave()
    assert node._left([named(1)]) == [named(1)]
    assert node._receptions.partial(named(1)) is None
    assert len(shelf.spares(is_left=True)) == 1


def test_what_one_rank_kept_outlives_a_change_of_size_until_ranks_of_today_keep_their_own(node: NodeVault) -> None:
    assign(node, 1)
    for rank, last in ((0, 8), (1, 9)):
        shelf = node.join(named(rank))
        for step in range(last - 2, last + 1):
            fill(shelf, step, 1)
    smaller = msgspec.structs.replace(named(0), world_size=2)
    shelf = node.join(smaller)
    assert shelf.steps() == []
    assert node.former is not None and node.former.world_size == 3
    assert node.former.steps() == (SealedStep(generation=1, step=9), SealedStep(generation=1, step=8))
    # A size in which nothing was kept leaves nothing better behind.
    node.join(msgspec.structs.replace(named(0), world_size=1))
    shelf = node.join(smaller)
    assert node.former is not None and node.former.newest == SealedStep(generation=1, step=9)
    for step, is_there in ((9, True), (10, False)):
        fill(shelf, step, 2)
        node.sealed(smaller, SealedStep(generation=2, step=step), None)
        assert (node.former is not None) == is_there
    # Another job finds nothing of it.
    node.join(msgspec.structs.replace(named(0), submitted_ms=2))
    assert node.former is None
