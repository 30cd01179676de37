"""Shards are copied to the memory of another node: real vaults, real sockets."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import vault_nodes
from vault_nodes import CHUNK, TOKEN, VaultNode, at, is_state, order_of, shard, state, until
from vault_way import Way

from holdfast.node.frames import receive, send
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.vault import vault_socket
from holdfast.node.vault.messages import BackedUp, DamageNotice, Done, Join, Refused, ShardName
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.pacing import PAUSE_S_MAX
from holdfast_vault.peers.handshake import NotAdmitted
from holdfast_vault.peers.peer_link import dial
from holdfast_vault.peers.peer_messages import Admitted, AskHeld, Challenge, greetings

pytestmark = pytest.mark.integration
node = vault_nodes.node

SLOW = ("--peer-bytes-per-s", str(4 * CHUNK))


def has_ended(link: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return link.recv(1) == b""
    return True


@contextmanager
def way_to_impostor() -> Iterator[VaultAddress]:
    """Somebody who says yes to everybody."""
    listening = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        link, _ = listening.accept()
        receive(link, greetings)
        send(link, Challenge(nonce=bytes(32)))
        receive(link, greetings)
        send(link, Admitted(mac=bytes(32)))

    thread = threading.Thread(target=greet)
    thread.start()
    yield VaultAddress(node="b", host="127.0.0.1", port=listening.getsockname()[1])
    thread.join()
    listening.close()


def test_what_is_sealed_reaches_the_keeper_bit_for_bit(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    assert keeper.assign(order_of("b", node_rank=1)) == Done()
    assert owner.assign(order_of("a", keeper=keeper.address)) == Done()
    notices = owner.follow()
    with owner.rank() as rank:
        for step in (1, 2, 3):
            rank.save(step, state(step))
            notice = notices()
            assert isinstance(notice, BackedUp)
            assert (notice.name, notice.sealed, notice.keeper, notice.skipped) == (shard(0), at(step), "b", 0)
    with keeper.rank() as copy:
        assert copy.steps() == (at(3), at(2), at(1))
        for step in (1, 2, 3):
            assert is_state(copy.restore(at(step)), step)


def test_only_every_so_manieth_step_is_sent(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address, every=3))
    notices = owner.follow()
    with owner.rank() as rank:
        for sent in (3, 6):
            for step in range(sent - 2, sent + 1):
                rank.save(step, state(step))
            # Before the next ones: of two steps that wait to be sent the newer one is.
            assert notices().sealed == at(sent)
    # Those that were sent stay beside the last two, for a node that is lost has nothing newer.
    with owner.rank() as again:
        assert {at(3), at(5), at(6)} <= set(again.steps())


def test_a_keeper_that_dies_in_the_middle_gets_it_when_it_is_back(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a", *SLOW), node("b")
    port = vault_socket.port(keeper.directory)
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 12))
        until("two chunks are there", lambda: keeper.held().chunks >= 2)
        keeper.kill()
        keeper.start()
        assert vault_socket.port(keeper.directory) == port
        # It does not know the job yet: the order comes when it comes.
        with pytest.raises(NotAdmitted, match="no such job"):
            keeper.held()
        keeper.assign(order_of("b", node_rank=1))
        assert notices().sealed == at(1)
    with keeper.rank() as copy:
        assert is_state(copy.restore(at(1)), 1, 12)


def test_a_connection_that_breaks_goes_on_at_the_chunk(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a", *SLOW), node("b")
    keeper.assign(order_of("b", node_rank=1))
    way = Way(keeper.address)
    owner.assign(order_of("a", keeper=way.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 12))
        until("three chunks are there", lambda: keeper.held().chunks >= 3)
        way.cut()
        notice = notices()
        assert isinstance(notice, BackedUp) and notice.sealed == at(1)
    # What had arrived, or was on its way, did not go over the wire twice.
    assert 12 * CHUNK < way.nbytes < 14 * CHUNK
    with keeper.rank() as copy:
        assert is_state(copy.restore(at(1)), 1, 12)
    way.close()


def test_a_copy_damaged_on_the_way_is_sent_again(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    way = Way(keeper.address, flip_at=6 * CHUNK)
    owner.assign(order_of("a", keeper=way.address))
    kept, sent = keeper.follow(), owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 9))
        damage = kept()
        assert isinstance(damage, DamageNotice) and (damage.sealed, damage.node) == (at(1), "a")
        assert isinstance(sent(), BackedUp)
    with keeper.rank() as copy:
        assert is_state(copy.restore(at(1)), 1, 9)
    way.close()


def test_a_shard_that_is_damaged_at_its_source_is_never_kept(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    with owner.rank() as rank:
        rank.save(1, state(1))
        rank.steps()
        owner.flip_a_byte(0, CHUNK + 5)
        keeper.assign(order_of("b", node_rank=1))
        notices = keeper.follow()
        owner.assign(order_of("a", keeper=keeper.address))
        damage = notices()
        assert isinstance(damage, DamageNotice) and damage.node == "a"
        sent = owner.follow()
        rank.save(2, state(2))
        assert sent().sealed == at(2)
    assert keeper.held().sealed == (at(2),)


def test_who_does_not_know_the_token_gets_nothing(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1), token="another")
    owner.assign(order_of("a", keeper=keeper.address))
    with pytest.raises(NotAdmitted, match="not the token"):
        keeper.held()
    with owner.rank() as rank:
        rank.save(1, state(1))
        rank.steps()
    assert keeper.held(token="another").sealed == ()
    # And the other way round: who is asked must know it too.
    with way_to_impostor() as address, pytest.raises(NotAdmitted, match="does not know the token"):
        dial(address, Assignment(order_of("a"), TOKEN))
    # With the right word it goes on by itself.
    notices = owner.follow()
    assert keeper.assign(order_of("b", node_rank=1, generation=1)) == Done()
    assert notices().sealed == at(1)


def test_nonsense_on_the_port_harms_nothing(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    port = keeper.address.port
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 1 << 31), struct.pack("<I", 40) + b"\x93" * 40):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
            stranger.sendall(nonsense)
            assert has_ended(stranger)
    half = socket.create_connection(("127.0.0.1", port), timeout=20)
    half.sendall(struct.pack("<I", 100) + b"\x81")
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1))
        assert notices().sealed == at(1)
    # None of them keeps a thread: they are ended when their time is over.
    for waiting in (*silent, half):
        waiting.settimeout(20)
        assert has_ended(waiting)
        waiting.close()
    # One who belongs to the job may still not speak out of turn, or of another job.
    with dial(keeper.address, Assignment(order_of("c"), TOKEN)) as link:
        link.sendall(struct.pack("<I", 8) + os.urandom(8))
        assert has_ended(link)
    with dial(keeper.address, Assignment(order_of("c"), TOKEN)) as link:
        send(link, AskHeld(names=(ShardName(job="other", submitted_ms=1, world_size=2, rank=0),)))
        assert has_ended(link)
    assert keeper.held().sealed == (at(1),)


def test_too_slow_a_link_gets_the_newest_and_says_what_it_skipped(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a", *SLOW), node("b")
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 12))
        until("it is being sent", lambda: keeper.held().chunks >= 1)
        keeper.signal(signal.SIGSTOP)
        for step in (2, 3, 4, 5, 6):
            rank.save(step, state(step, 12))
        rank.steps()
        keeper.signal(signal.SIGCONT)
        told = [notices(), notices()]
        assert all(isinstance(notice, BackedUp) for notice in told)
        assert [(notice.sealed, notice.skipped) for notice in told] == [(at(1), 0), (at(6), 4)]
        # The first was sent from memory that five saves could have overwritten.
        assert {at(1), at(6)} <= set(rank.steps())
    with keeper.rank() as copy:
        assert is_state(copy.restore(at(1)), 1, 12) and is_state(copy.restore(at(6)), 6, 12)


def test_what_the_job_left_behind_goes_everywhere(node: Callable[..., VaultNode]) -> None:
    owner, keeper, before = node("a"), node("b"), node("c")
    for other, rank in ((keeper, 1), (before, 1)):
        other.assign(order_of(other.node, node_rank=rank))
    notices = owner.follow()
    # The copies went to c first, then to b.
    owner.assign(order_of("a", keeper=before.address))
    with owner.rank() as rank:
        for step in (1, 2):
            rank.save(step, state(step))
            assert notices().sealed == at(step)
    owner.assign(order_of("a", keeper=keeper.address, sources=(before.address,)))
    assert notices().sealed == at(2)
    # A cut-off node is left behind with generation 1; this one goes back to step 1.
    for each in (owner, keeper, before):
        order = order_of(each.node, generation=2, node_rank=0 if each is owner else 1)
        sources = (before.address,)
        new = order_of("a", generation=2, keeper=keeper.address, sources=sources) if each is owner else order
        assert each.assign(new) == Done()
    with owner.rank(generation=2) as rank:
        rank.keep_only(at(1))
        assert rank.steps() == (at(1),)
        assert notices().sealed == at(1)
        until("the keeper has dropped it", lambda: keeper.held().sealed == (at(1),))
        until("the one before has dropped it", lambda: before.held().sealed == (at(1),))
        rank.save(2, state(20))
        assert notices().sealed == at(2, 2)
    assert keeper.held().sealed == (at(2, 2), at(1))


def test_a_node_that_was_left_behind_cannot_bring_its_steps_back(node: Callable[..., VaultNode]) -> None:
    cut_off, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1, generation=2))
    cut_off.assign(order_of("a", generation=1, keeper=keeper.address))
    with cut_off.rank() as rank:
        rank.save(7, state(7))
        rank.steps()
        notices = cut_off.follow()
        # It learns of the new generation: only now is anything of its taken.
        cut_off.assign(order_of("a", generation=2, keeper=keeper.address))
        with cut_off.rank(generation=2) as new:
            new.save(3, state(3))
            assert notices().sealed == at(3, 2)
    assert keeper.held().sealed == (at(3, 2),)


def test_an_older_order_is_refused_and_another_jobs_memory_given_back(node: Callable[..., VaultNode]) -> None:
    one = node("a")
    assert one.assign(order_of("a", generation=5)) == Done()
    assert isinstance(one.assign(order_of("a", generation=4)), Refused)
    assert one.assign(order_of("a", generation=5, every=2)) == Done()
    with one.rank() as rank:
        rank.save(1, state(1))
        rank.steps()
        assert one.segments() == 3
        assert one.assign(order_of("a", job="other", submitted_ms=9)) == Done()
        until("its memory is back", lambda: one.segments() == 0)
        assert rank.steps() == ()


def test_a_stopped_keeper_holds_up_nobody(node: Callable[..., VaultNode]) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1))
        assert notices().sealed == at(1)
        keeper.signal(signal.SIGSTOP)
        for step in range(2, 8):
            rank.save(step, state(step))
        assert rank.steps()[0] == at(7)
        keeper.signal(signal.SIGCONT)
        while notices().sealed != at(7):
            pass


def test_copies_stand_back_while_a_rank_is_in_a_collective(node: Callable[..., VaultNode], tmp_path: Path) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    ledger = LedgerWriter(tmp_path / "ledger", rank=0, generation=1)
    with owner.rank() as rank:
        rank._join = Join(name=shard(0), generation=1, pid=os.getpid(), ledger=str(ledger.path))
        rank.save(1, state(1, 10))
        assert notices().sealed == at(1)
        ledger.enter_collective(b"all_reduce")
        rank.save(2, state(2, 10))
        notice = notices()
    ledger.close()
    # For a rank may hang in one, each of the ten chunks stands back for its time, and is sent for all that.
    assert isinstance(notice, BackedUp) and notice.took_s >= 10 * PAUSE_S_MAX
