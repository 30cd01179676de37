"""A vault's successor takes its place with everything that the vault held: real processes, killed in real ways."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
import vault_nodes
from vault_nodes import VaultNode, at, is_state, members_of, order_of, shard, state, until

from holdfast.node.frames import WireError
from holdfast.node.kernel import started_ticks
from holdfast.node.vault import vault_socket
from holdfast.node.vault.seals import seal
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.succession.handover import Handover, Successor
from holdfast_vault.succession.succession_records import DEPOSITS_MAX, Deposits, Inheritance, ShelfRecord, records

pytestmark = pytest.mark.integration
node = vault_nodes.node


def serving(vault: VaultNode) -> int:
    """The process that serves this node's ranks."""
    with vault_socket.connect(vault.directory) as link:
        return vault_socket.peer_pid(link)


def successors(vault: VaultNode) -> list[int]:
    """The processes of the node's vault that do not serve."""
    assert vault.process is not None
    return sorted({*members_of(vault.process.pid)} - {serving(vault)})


def end(vault: VaultNode) -> None:
    """Kill the process that serves, and it alone."""
    ended = serving(vault)
    os.kill(ended, signal.SIGKILL)
    until("another process serves", lambda: serving(vault) != ended)


def test_what_a_killed_vault_held_is_there_still(node: Callable[..., VaultNode]) -> None:
    one, keeper = node("one"), node("keeper")
    marks = {"certified_step": 2, "certified_generation": 1}
    one.assign(msgspec.structs.replace(order_of("one", keeper=keeper.address), **marks))
    keeper.assign(order_of("keeper", node_rank=1))
    with one.rank() as rank:
        for step in range(1, 7):
            rank.save(step, state(step))
        before = rank.steps()
        until("the newest is copied", lambda: at(6) in keeper.held().sealed)
    copied = keeper.held().sealed
    for vault in (one, keeper):
        port = vault_socket.port(vault.directory)
        end(vault)
        assert vault_socket.port(vault.directory) == port
        assert len(successors(vault)) == 1
    assert keeper.held().sealed == copied
    with one.rank() as rank:
        assert rank.steps() == before
        for sealed in before:
            assert is_state(rank.restore(sealed), sealed.step)
        # The order came with it: the certified step stays, and copies go on.
        rank.save(7, state(7))
        rank.save(8, state(8))
        assert at(2) in rank.steps()
        until("the newest is copied", lambda: at(8) in keeper.held().sealed)
    # The successor has one too.
    end(one)
    with one.rank() as rank:
        assert at(8) in rank.steps() and is_state(rank.restore(at(8)), 8)


def test_a_step_that_the_job_left_behind_does_not_come_back(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        for step in (1, 2, 3):
            rank.save(step, state(step))
    with one.rank(generation=2) as rank:
        rank.keep_only(at(2))
        rank.save(3, state(33))
        held = rank.steps()
    end(one)
    with one.rank(generation=2) as rank:
        assert rank.steps() == held == (at(3, 2), at(2), at(1))
        assert is_state(rank.restore(at(3, 2)), 33)


def test_damage_is_not_handed_on(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        for step in (1, 2):
            rank.save(step, state(step))
        rank.steps()
    before = serving(one)
    for name in os.listdir(f"/proc/{before}/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/{before}/fd/{name}").startswith("/memfd:holdfast-job"):
                with open(f"/proc/{before}/fd/{name}", "r+b") as memory:
                    memory.seek(1000)
                    memory.write(b"spoiled")
    end(one)
    with one.rank() as rank:
        until("what is damaged was dropped", lambda: rank.steps() == ())


def test_a_successor_that_is_killed_is_replaced(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
        (first,) = successors(one)
        os.kill(first, signal.SIGKILL)
        # The vault notices it when it has something to tell it.
        rank.save(2, state(2))
        until("there is another one", lambda: [it for it in successors(one) if it != first])
        rank.save(3, state(3))
        held = rank.steps()
    end(one)
    with one.rank() as rank:
        assert rank.steps() == held and held[:2] == (at(3), at(2))
        assert is_state(rank.restore(at(2)), 2)


def test_a_successor_that_is_stopped_does_not_hold_up_the_vault(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
        (first,) = successors(one)
        os.kill(first, signal.SIGSTOP)
        # It reads nothing, so what the vault has to tell it soon fills the connection.
        steps, small = iter(range(2, 1000)), state(1, chunks=0.1)
        while started_ticks(first) is not None:
            rank.save(next(steps), small)
        until("there is another one", lambda: len(successors(one)) == 1)
        rank.save(1000, state(1000))
        held = rank.steps()
    end(one)
    with one.rank() as rank:
        assert rank.steps() == held and is_state(rank.restore(at(1000)), 1000)


def test_what_a_large_node_holds_fits_before_its_successor_reads() -> None:
    """A successor that is started anew imports its modules first, for a second or more on a busy machine."""
    segment, names = Segment("shard", 1), [shard(rank, 96) for rank in range(96)]
    notes = b"index", b"objects"
    whole = seal(notes, segment.memory)
    held = [
        (segment, SealedContents(sealed=at(step), index=notes[0], objects=notes[1], seal=whole)) for step in range(4)
    ]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with subprocess.Popen(["sleep", "60"]) as waiting:
        handover = Handover(Successor(ours, waiting.pid), lambda: pytest.fail("it was replaced"))
        for name in names:
            handover.shelf(name, held, None, ())
        waiting.kill()
    inheritance = Inheritance()
    for _ in names:
        data, descriptors, _, _ = socket.recv_fds(theirs, 1 << 16, 2 * DEPOSITS_MAX)
        deposits, shelf_record = records.decode(data)
        assert isinstance(deposits, Deposits) and isinstance(shelf_record, ShelfRecord)
        inheritance.take([deposits, shelf_record], descriptors)
    inherited = {shelf.name: [it.contents.sealed.step for it in shelf.shards] for shelf in inheritance.shelves()}
    assert inherited == {name: [0, 1, 2, 3] for name in names}


def test_a_shard_that_is_about_to_be_overwritten_is_taken_back_without_a_message() -> None:
    segments, name, notes = [Segment("shard", 1) for _ in range(2)], shard(0), (b"index", b"objects")
    held = [
        (each, SealedContents(sealed=at(step), index=notes[0], objects=notes[1], seal=seal(notes, each.memory)))
        for step, each in enumerate(segments)
    ]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    inheritance = Inheritance()
    with subprocess.Popen(["sleep", "60"]) as waiting:
        handover = Handover(Successor(ours, waiting.pid), lambda: pytest.fail("it was replaced"))
        handover.shelf(name, held, None, ())
        data, descriptors, _, _ = socket.recv_fds(theirs, 1 << 16, 2 * DEPOSITS_MAX)
        inheritance.take(records.decode(data), descriptors)
        handover.withdraw(name, segments[0])
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        waiting.kill()
    (shelf,) = inheritance.shelves()
    assert [it.contents.sealed.step for it in shelf.shards] == [1]


def test_a_vault_that_is_stopped_is_replaced_and_nothing_is_lost(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
        rank.steps()
        os.kill(serving(one), signal.SIGSTOP)
        with pytest.raises(WireError):
            rank.save(2, state(2))
    with one.rank() as rank:
        rank.save(2, state(2))
        assert rank.steps() == (at(2), at(1))


def test_a_vault_that_ends_in_order_leaves_nothing_behind(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
    (successor,) = successors(one)
    one.signal(signal.SIGTERM)
    assert one.process is not None and one.process.wait(30) == 0
    until("its successor is gone", lambda: successor not in members_of(one.process.pid))
    assert not (one.directory / vault_socket.NAME).exists()


def test_both_killed_are_a_loss(node: Callable[..., VaultNode]) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
    one.kill()
    one.start()
    with one.rank() as rank:
        assert rank.steps() == ()
