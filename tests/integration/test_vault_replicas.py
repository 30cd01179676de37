"""What data-parallel replicas have in common is sent and kept once, and found again: real vaults, real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import vault_nodes
from vault_nodes import CHUNK, VaultNode, at, order_of, until

from holdfast.node.vault.messages import BackedUp, DamageNotice, Done
from holdfast.orders.backup import Replica
from holdfast.trainer.vault_client.client import VaultClient

pytestmark = pytest.mark.integration
node = vault_nodes.node

Make = Callable[..., VaultNode]
WORLD = 4
COMMON, OWN = 8, 2
"""Chunks that both replicas have the same, and chunks that each has of its own."""


def zero_1(rank: int, step: int) -> dict[str, object]:
    """Parameters, the same for all replicas, and a part of the optimizer's state."""
    return {
        "model": torch.arange(COMMON * CHUNK // 4, dtype=torch.int32) + step,
        "optimizer": torch.arange(OWN * CHUNK // 4, dtype=torch.int32) * (rank + 2) + step,
        "rank": rank,
    }


def restores(client: VaultClient, rank: int, step: int, generation: int = 1) -> bool:
    found, expected = client.restore(at(step, generation)), zero_1(rank, step)
    return found["rank"] == rank and all(
        torch.equal(found[name], expected[name])  # type: ignore[arg-type]
        for name in ("model", "optimizer")
    )


class Four(NamedTuple):
    """Ranks 0 and 1 are replicas, on `a` and `b`; `c` keeps copies of the first, `d` those of the second."""

    a: VaultNode
    b: VaultNode
    c: VaultNode
    d: VaultNode

    def replicas(self, a: VaultNode | None = None, b: VaultNode | None = None) -> tuple[Replica, ...]:
        owners, keepers = (a or self.a, b or self.b), (self.c, self.d)
        return tuple(
            Replica(node_rank=rank, vault=owner.address, others=(keeper.address,))
            for rank, (owner, keeper) in enumerate(zip(owners, keepers, strict=True))
        )

    def assign(self, generation: int = 1) -> None:
        for rank, keeper in enumerate((self.c, self.d)):
            order = order_of(keeper.node, node_rank=2 + rank, world_size=WORLD, generation=generation)
            assert keeper.assign(order) == Done()

    def owns(self, owner: VaultNode, rank: int, *, generation: int = 1, **replaced: VaultNode) -> None:
        keeper = (self.c, self.d)[rank].address
        order = order_of(
            owner.node,
            node_rank=rank,
            world_size=WORLD,
            generation=generation,
            keeper=keeper,
            sources=(keeper,) if generation > 1 else (),
            alike=(0, 1),
            replicas=self.replicas(**replaced),
        )
        assert owner.assign(order) == Done()

    def train(self, step: int, *ranks: int, damaged: dict[int, tuple[int, ...]] | None = None) -> list[BackedUp]:
        """Both seal a step; what is said of their copies. The bytes at the `damaged` places of a rank are flipped then.

        Before the rank ends: what is looked at then counts for a while.
        """
        owners = [(self.a, self.b)[rank] for rank in ranks or (0, 1)]
        following = [owner.follow() for owner in owners]
        clients = [VaultClient(owner.directory, vault_nodes.shard(rank, WORLD), 1) for rank, owner in enumerate(owners)]
        for rank, client in enumerate(clients):
            client.save(step, zero_1(rank, step))
        told = [notice() for notice in following]
        for rank, client in enumerate(clients):
            for offset in (damaged or {}).get(rank, ()):
                owners[rank].flip_a_byte(rank, offset)
            client.close()
        assert all(isinstance(notice, BackedUp) and notice.sealed == at(step) for notice in told)
        return [notice for notice in told if isinstance(notice, BackedUp)]


def four_of(node: Make, *, is_patient: bool = False) -> Four:
    it = Four(*(node(name, is_patient=is_patient) for name in "abcd"))
    it.assign()
    it.owns(it.a, 0)
    it.owns(it.b, 1)
    return it


@pytest.fixture
def four(node: Make) -> Four:
    return four_of(node)


def test_what_replicas_have_in_common_is_sent_and_kept_once(node: Make) -> None:
    # They share what both have sealed within a second, and a busy machine takes longer.
    four = four_of(node, is_patient=True)
    for step in (1, 2):
        for notice in four.train(step):
            assert CHUNK * (COMMON // 2 + OWN) <= notice.nbytes < CHUNK * (COMMON // 2 + OWN + 1)
            assert notice.nbytes_shared == CHUNK * COMMON // 2
    for rank, keeper in enumerate((four.c, four.d)):
        whole = [four.a, four.b][rank].taken(rank) / four.a.segments()
        until("memory is settled", lambda rank=rank, keeper=keeper, whole=whole: keeper.taken(rank) < 2 * 0.7 * whole)


def test_a_lost_replica_comes_back_from_its_keeper_and_from_the_other(four: Four, node: Make) -> None:
    four.train(1)
    four.a.kill()
    new = node("new")
    four.assign(2)
    four.owns(four.b, 1, generation=2, a=new)
    four.owns(new, 0, generation=2, a=new)
    with new.rank(0, generation=2, world_size=WORLD) as rank:
        assert rank.steps() == (at(1),)
        assert restores(rank, 0, 1)


def test_a_whole_data_parallel_group_comes_back_from_the_keepers(four: Four, node: Make) -> None:
    four.train(1)
    four.train(2)
    four.a.kill()
    four.b.kill()
    a, b = node("e"), node("f")
    four.assign(2)
    four.owns(a, 0, generation=2, a=a, b=b)
    four.owns(b, 1, generation=2, a=a, b=b)
    for rank, owner in enumerate((a, b)):
        with owner.rank(rank, generation=2, world_size=WORLD) as client:
            assert client.steps()[0] == at(2)
            assert restores(client, rank, 2)


def test_a_keeper_that_gets_the_rank_itself_asks_for_what_it_lacks(four: Four) -> None:
    four.train(1)
    four.a.kill()
    four.owns(four.b, 1, generation=2, a=four.c)
    order = order_of("c", node_rank=0, world_size=WORLD, generation=2, alike=(0, 1), replicas=four.replicas(a=four.c))
    assert four.c.assign(order) == Done()
    told = four.c.follow()
    with four.c.rank(0, generation=2, world_size=WORLD) as rank:
        assert rank.steps() == (at(1),)
        assert restores(rank, 0, 1)
        # Nothing of it is damage.
        assert not isinstance(told(), DamageNotice)


def test_a_replica_that_is_away_is_not_waited_for(four: Four) -> None:
    four.b.kill()
    (notice,) = four.train(1, 0)
    assert notice.nbytes_shared == 0
    assert notice.nbytes >= CHUNK * (COMMON + OWN)


def test_damage_is_mended_from_a_replica_where_nobody_keeps_copies(node: Make) -> None:
    a, b = node("a"), node("b")
    replicas = tuple(Replica(node_rank=rank, vault=each.address) for rank, each in enumerate((a, b)))
    for rank, each in enumerate((a, b)):
        each.assign(order_of(each.node, node_rank=rank, world_size=WORLD, alike=(0, 1), replicas=replicas))
        with each.rank(rank, world_size=WORLD) as client:
            client.save(1, zero_1(rank, 1))
            client.steps()
            if each is a:
                # Before its rank ends: what is looked at then counts for a while.
                a.flip_a_byte(0, 3 * CHUNK + 5)
    with a.rank(0, world_size=WORLD) as client:
        assert restores(client, 0, 1)


def test_damage_is_mended_wherever_what_is_damaged_can_be_had(four: Four) -> None:
    # One chunk that only the replica has beside it, and one that only the keeper has.
    four.train(1, damaged={0: (3 * CHUNK + 5, (COMMON + 1) * CHUNK + 5)})
    with four.a.rank(0, world_size=WORLD) as client:
        assert restores(client, 0, 1)


def test_a_replica_on_the_same_node_mends_damage_too(node: Make) -> None:
    a = node("a")
    replicas = (Replica(node_rank=0, vault=a.address),)
    a.assign(order_of("a", nproc_per_node=2, world_size=2, alike=(0, 1), replicas=replicas))
    for rank in (1, 0):
        with a.rank(rank) as client:
            client.save(1, zero_1(rank, 1))
            client.steps()
            if rank == 0:
                a.flip_a_byte(0, 3 * CHUNK + 5)
    with a.rank(0) as client:
        assert restores(client, 0, 1)


def test_a_source_with_a_damaged_chunk_still_gives_the_others(four: Four, node: Make) -> None:
    four.train(1, damaged={0: (3 * CHUNK + 5,)})
    new = node("new")
    four.assign(2)
    four.owns(four.b, 1, generation=2, a=new)
    order = order_of(
        "new",
        world_size=WORLD,
        generation=2,
        sources=(four.a.address, four.c.address),
        alike=(0, 1),
        replicas=four.replicas(a=new),
    )
    assert new.assign(order) == Done()
    with new.rank(0, generation=2, world_size=WORLD) as rank:
        assert restores(rank, 0, 1)


def test_a_part_of_a_copy_is_not_offered_while_nobody_knows_who_has_the_rest(four: Four) -> None:
    four.train(1)
    with four.c.rank(0, generation=2, world_size=WORLD) as rank:
        assert rank.steps() == ()


def test_a_step_that_is_kept_twice_is_shared_as_it_is_then(four: Four) -> None:
    four.train(1)
    told = four.a.follow()
    with four.a.rank(0, world_size=WORLD) as client:
        other = zero_1(0, 1)
        client.save(1, {**other, "model": other["model"] + 7})  # type: ignore[operator]
        again = told()
    assert isinstance(again, BackedUp) and again.nbytes_shared == 0
