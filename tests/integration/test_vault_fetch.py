"""A node gets back what it has not, or not whole, from the memory of others: real vaults, real sockets."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import vault_nodes
from vault_nodes import CHUNK, VaultNode, at, is_state, order_of, shard, state, until
from vault_way import Way

from holdfast.node.vault.messages import DamageNotice, Done, Fetched
from holdfast.trainer.vault_client.client import BrokenSeal, MemoryRefused, VaultClient

pytestmark = pytest.mark.integration
node = vault_nodes.node

Make = Callable[..., VaultNode]
Scene = tuple[VaultNode, list[VaultNode]]


@contextmanager
def lost(make: Make, steps: int, *, chunks: float = 2.5, copies: int = 1, is_patient: bool = True) -> Iterator[Scene]:
    """Rank 0's node is lost after so many steps; a new node and those that keep the copies. Nobody is assigned yet."""
    owner = make("lost")
    keepers = [make(f"keeper{index}") for index in range(copies)]
    for keeper in keepers:
        keeper.assign(order_of(keeper.node, node_rank=1))
    with owner.rank() as rank:
        for step in range(1, steps + 1):
            rank.save(step, state(step, chunks))
            rank.steps()
            for keeper in keepers:
                # A keeper that is named gets the newest step.
                owner.assign(order_of("lost", keeper=keeper.address))
                until("the keeper has it", lambda keeper=keeper, step=step: at(step) in keeper.held().sealed)
    owner.kill()
    yield make("new", is_patient=is_patient), keepers


def take_over(new: VaultNode, keepers: list[VaultNode], *addresses: vault_nodes.VaultAddress) -> None:
    """Generation 2 begins, with the new node in place of the lost one."""
    for keeper in keepers:
        keeper.assign(order_of(keeper.node, node_rank=1, generation=2))
    sources = addresses or tuple(keeper.address for keeper in keepers)
    assert new.assign(order_of("new", generation=2, sources=sources)) == Done()


def test_a_node_that_has_nothing_gets_the_steps_of_the_one_that_is_lost(node: Make) -> None:
    with lost(node, 3) as (new, keepers):
        # The rank asks before the order has come.
        coming = threading.Timer(0.2, take_over, (new, keepers))
        coming.start()
        notices = new.follow()
        with new.rank(generation=2) as rank:
            assert rank.steps() == (at(3), at(2), at(1))
            # The newest is fetched before it is asked for.
            notice = notices()
            assert isinstance(notice, Fetched)
            assert (notice.name, notice.sealed, notice.source) == (shard(0), at(3), "keeper0")
            for step in (3, 2):
                assert is_state(rank.restore(at(step)), step)
            assert notices().sealed == at(2)
            with pytest.raises(MemoryRefused, match="no other node has it"):
                rank.restore(at(9))
        coming.join()


def test_a_rank_that_has_its_own_steps_waits_for_nobody(node: Make, capfd: pytest.CaptureFixture[str]) -> None:
    waited_in_vain = "no order names vaults with shards of this rank"
    one = node("a")
    with one.rank() as rank:
        rank.keep_only(None)
        rank.save(1, state(1))
    with one.rank(generation=2) as again:
        assert again.steps() == (at(1),)
        assert waited_in_vain not in capfd.readouterr().err
    with one.rank(1, generation=2) as other:
        # Without an order for this generation the wait is over some time.
        assert other.steps() == ()
        assert waited_in_vain in capfd.readouterr().err


def test_all_who_ask_for_a_shard_share_one_fetch(node: Make) -> None:
    with lost(node, 1, chunks=16) as (new, keepers):
        way = Way(keepers[0].address)
        take_over(new, keepers, way.address)
        with new.rank(generation=2) as one, new.rank(generation=2) as two, new.rank(generation=2) as three:
            found: list[bool] = []

            def restore(client: VaultClient) -> None:
                found.append(is_state(client.restore(at(1)), 1, 16))

            asking = [threading.Thread(target=restore, args=(client,)) for client in (one, two, three)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            assert found == [True] * 3
        assert 16 * CHUNK < way.nbytes_back < 17 * CHUNK
        way.close()


def test_several_sources_share_the_work(node: Make) -> None:
    with lost(node, 1, chunks=40, copies=2) as (new, keepers):
        # Neither gives all before a busy machine comes to the other.
        ways = [Way(keeper.address, hold_back_at=5 * CHUNK) for keeper in keepers]
        take_over(new, keepers, *(way.address for way in ways))
        with new.rank(generation=2) as rank:
            found: list[bool] = []
            asking = threading.Thread(target=lambda: found.append(is_state(rank.restore(at(1)), 1, 40)))
            asking.start()
            until("both give", lambda: all(way.nbytes_back >= 5 * CHUNK for way in ways))
            for way in ways:
                way.go_on()
            asking.join()
        assert found == [True]
        for way in ways:
            assert 4 * CHUNK < way.nbytes_back < 36 * CHUNK
            way.close()


def test_a_source_that_dies_in_the_middle_is_replaced_by_another(node: Make) -> None:
    # One that is patient would wait for the one that stands.
    with lost(node, 1, chunks=24, copies=2, is_patient=False) as (new, keepers):
        # Whatever comes of the first stops after a few chunks.
        way = Way(keepers[0].address, stop_back_at=3 * CHUNK)
        take_over(new, keepers, way.address, keepers[1].address)
        # The other one is there only when the first has begun.
        keepers[1].signal(signal.SIGSTOP)
        with new.rank(generation=2) as rank:
            found: list[bool] = []
            asking = threading.Thread(target=lambda: found.append(is_state(rank.restore(at(1)), 1, 24)))
            asking.start()
            until("a part has come", lambda: way.nbytes_back >= 3 * CHUNK)
            keepers[0].kill()
            way.cut()
            keepers[1].signal(signal.SIGCONT)
            asking.join()
        assert found == [True]
        way.close()


def test_when_no_source_is_left_it_is_said(node: Make) -> None:
    with lost(node, 1, chunks=24) as (new, keepers):
        way = Way(keepers[0].address, stop_back_at=3 * CHUNK)
        take_over(new, keepers, way.address)
        with new.rank(generation=2) as rank:
            told: list[str] = []

            def restore() -> None:
                with pytest.raises(MemoryRefused, match=r"nor to be had: .*keeper0") as raised:
                    rank.restore(at(1))
                told.append(str(raised.value))

            asking = threading.Thread(target=restore)
            asking.start()
            until("a part has come", lambda: way.nbytes_back >= 3 * CHUNK)
            keepers[0].kill()
            way.close()
            asking.join()
            assert len(told) == 1
            # Nothing half done is offered.
            assert rank.steps() == ()


def test_a_chunk_that_one_source_has_damaged_comes_from_another(node: Make) -> None:
    with lost(node, 1, chunks=6, copies=2) as (new, keepers):
        for place in range(6):
            keepers[0].flip_a_byte(0, place * CHUNK + 77)
        take_over(new, keepers)
        notices = new.follow()
        with new.rank(generation=2) as rank:
            assert is_state(rank.restore(at(1)), 1, 6)
        told = [notices()]
        while not isinstance(told[-1], Fetched):
            told.append(notices())
        assert {notice.node for notice in told if isinstance(notice, DamageNotice)} <= {"keeper0"}
        assert told[-1].source == "keeper1"


def test_a_shard_that_all_have_damaged_is_refused(node: Make) -> None:
    with lost(node, 1) as (new, keepers):
        keepers[0].flip_a_byte(0, 5)
        take_over(new, keepers)
        notices = new.follow()
        with new.rank(generation=2) as rank, pytest.raises(MemoryRefused, match="chunk 0 fails its checksum"):
            rank.restore(at(1))
        damage = notices()
        assert isinstance(damage, DamageNotice) and damage.node == "keeper0"


def test_a_damaged_shard_is_repaired_from_its_keeper(node: Make) -> None:
    owner, keeper = node("a"), node("b")
    keeper.assign(order_of("b", node_rank=1))
    way = Way(keeper.address)
    owner.assign(order_of("a", keeper=way.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 12))
        assert notices().sealed == at(1)
        owner.flip_a_byte(0, 7 * CHUNK + 123)
        before = way.nbytes_back
        assert is_state(rank.restore(at(1)), 1, 12)
        damage = notices()
        assert isinstance(damage, DamageNotice) and (damage.sealed, damage.node) == (at(1), "")
        # Only what was damaged came over the wire.
        assert CHUNK < way.nbytes_back - before < 2 * CHUNK
        # Nobody has the next one: it is not offered any more.
        owner.assign(order_of("a", generation=1))
        rank.save(2, state(2, 12))
        rank.steps()
        owner.flip_a_byte(0, 3)
        with pytest.raises(BrokenSeal, match="cannot be repaired"):
            rank.restore(at(2))
        assert at(2) not in rank.steps()
    way.close()


def test_a_step_that_was_left_behind_does_not_come_back_from_a_node_that_missed_it(node: Make) -> None:
    with lost(node, 3, copies=2) as (new, keepers):
        take_over(new, keepers, keepers[0].address)
        # While one keeper hears nothing, the job goes back to step 2.
        keepers[1].signal(signal.SIGSTOP)
        with new.rank(generation=2) as rank:
            assert is_state(rank.restore(at(2)), 2)
            rank.keep_only(at(2))
            # The first step is the way back until a certified one is named.
            until(
                "the keeper that runs has dropped the rest",
                lambda: keepers[0].held().sealed == (at(2), at(1)),
            )
        new.kill()
        keepers[1].signal(signal.SIGCONT)
        next_one = node("next", is_patient=True)
        for keeper in keepers:
            keeper.assign(order_of(keeper.node, node_rank=1, generation=3))
        sources = tuple(keeper.address for keeper in reversed(keepers))
        next_one.assign(order_of("next", generation=3, sources=sources))
        assert keepers[1].held().sealed == (at(3), at(2), at(1))
        with next_one.rank(generation=3) as rank:
            assert rank.steps() == (at(2), at(1))
            assert is_state(rank.restore(at(2)), 2)
