"""A step to go back to behind bad numbers outlives what the job goes on from: real vaults, real sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import vault_nodes
from test_vault_fetch import lost
from vault_nodes import VaultNode, at, is_state, order_of, state, until

pytestmark = pytest.mark.integration
node = vault_nodes.node


def test_a_node_that_has_only_newer_steps_gets_the_certified_one_from_the_node_that_keeps_it(
    node: Callable[..., VaultNode],
) -> None:
    with lost(node, 3) as (new, (keeper,)):
        certified = {"certified_step": 1, "certified_generation": 1}
        order = order_of("new", generation=2, keeper=keeper.address, sources=(keeper.address,))
        new.assign(msgspec.structs.replace(order, **certified))
        keeper.assign(msgspec.structs.replace(order_of(keeper.node, node_rank=1, generation=2), **certified))
        with new.rank(generation=2) as rank:
            # A lost node is no reason to go back further than to the newest step.
            assert is_state(rank.restore(at(3)), 3)
            rank.keep_only(at(3))
            for step in (4, 5, 6):
                rank.save(step, state(step))
            until("the keeper has the newest", lambda: at(6, 2) in keeper.held().sealed)
            assert at(1) in keeper.held().sealed and at(2) not in keeper.held().sealed
        # Bad numbers are another matter.
        order = msgspec.structs.replace(order, generation=3, **certified)
        new.assign(order)
        with new.rank(generation=3) as rank:
            assert at(1) not in rank.steps()
            assert at(1) in rank.steps(at_most=1)
            assert is_state(rank.restore(at(1)), 1)
            rank.keep_only(at(1))
            until("the keeper has given up the rest", lambda: keeper.held().sealed == (at(1),))
            rank.save(2, state(2))
            assert rank.steps() == (at(2, 3), at(1))


def test_before_a_step_is_named_a_rank_that_moved_can_go_back_to_the_first_one(node: Callable[..., VaultNode]) -> None:
    with lost(node, 3) as (new, (keeper,)):
        order = order_of("new", generation=2, keeper=keeper.address, sources=(keeper.address,))
        new.assign(order)
        keeper.assign(order_of(keeper.node, node_rank=1, generation=2))
        with new.rank(generation=2) as rank:
            assert at(3) in rank.steps()
            assert is_state(rank.restore(at(3)), 3)
            rank.keep_only(at(3))
            for step in (4, 5, 6):
                rank.save(step, state(step))
            until("the keeper has the newest", lambda: at(6, 2) in keeper.held().sealed)
        new.assign(msgspec.structs.replace(order, generation=3))
        with new.rank(generation=3) as rank:
            # What the nodes that never moved have as their oldest, and keep until a certified step is named.
            assert at(1) in rank.steps(at_most=2)
            assert is_state(rank.restore(at(1)), 1)
