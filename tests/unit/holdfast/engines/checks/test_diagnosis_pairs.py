"""Who meets whom in a run of checks, and what failed meetings say."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.checks.pairs import ROUNDS, judge_pairs, partner, rounds

Outcomes = dict[tuple[str, str], bool]


def outcomes(nodes: int, count: int = ROUNDS, failed: frozenset[tuple[int, int]] = frozenset()) -> Outcomes:
    """What a run says in which these pairs fail."""
    pairs = chain.from_iterable(rounds(nodes, count))
    return {(f"n{one}", f"n{other}"): (one, other) not in failed for one, other in pairs}


def pairs_of(nodes: int, node: int, count: int = ROUNDS) -> list[tuple[int, int]]:
    return [pair for pair in chain.from_iterable(rounds(nodes, count)) if node in pair]


@given(st.integers(min_value=0, max_value=200), st.integers(min_value=0, max_value=12))
def test_nobody_meets_twice_and_everybody_is_busy(nodes: int, count: int) -> None:
    planned = rounds(nodes, count)
    met = list(chain.from_iterable(planned))
    assert len(met) == len(set(met))
    assert all(0 <= one < other < nodes for one, other in met)
    for pairs in planned:
        assert len(pairs) == nodes // 2
        assert len(set(chain.from_iterable(pairs))) == 2 * len(pairs)
    everybody = nodes - 1 if nodes % 2 == 0 else nodes
    assert len(planned) == (0 if nodes < 2 else min(count, everybody))


@given(st.integers(min_value=2, max_value=200))
def test_the_first_round_is_that_of_neighbours(nodes: int) -> None:
    assert rounds(nodes, 1) == (tuple((low, low + 1) for low in range(0, nodes - 1, 2)),)


def test_all_rounds_together_are_all_pairs() -> None:
    for nodes in range(2, 12):
        assert set(chain.from_iterable(rounds(nodes, nodes))) == set(combinations(range(nodes), 2))


def test_a_partner_is_found_from_both_sides_and_one_sits_out() -> None:
    (first, *_) = rounds(3)
    assert [partner(rank, first) for rank in range(3)] == [1, 0, None]


@st.composite
def one_bad_node(draw: st.DrawFn) -> tuple[int, int, frozenset[tuple[int, int]]]:
    """A node of several that fails with two partners or more: for good, or now and then."""
    nodes = draw(st.integers(min_value=3, max_value=40))
    node = draw(st.integers(min_value=0, max_value=nodes - 1))
    met = pairs_of(nodes, node)
    failed = draw(st.sets(st.sampled_from(met), min_size=2))
    return nodes, node, frozenset(failed)


@given(one_bad_node())
def test_one_bad_node_is_named_and_nobody_else(case: tuple[int, int, frozenset[tuple[int, int]]]) -> None:
    nodes, node, failed = case
    found = judge_pairs(outcomes(nodes, failed=failed))
    assert found.bad.keys() | found.doubtful.keys() == {f"n{node}"}
    assert found.links == ()
    if len(failed) == len(pairs_of(nodes, node)):
        assert found.bad.keys() == {f"n{node}"}


@given(st.integers(min_value=2, max_value=40).flatmap(lambda nodes: st.tuples(st.just(nodes), st.data())))
def test_one_bad_link_is_named_and_no_node(case: tuple[int, st.DataObject]) -> None:
    nodes, data = case
    link = data.draw(st.sampled_from(sorted(chain.from_iterable(rounds(nodes)))))
    found = judge_pairs(outcomes(nodes, failed=frozenset({link})))
    assert not found.bad and not found.doubtful
    assert found.links == (tuple(sorted(f"n{rank}" for rank in link)),)


@given(st.integers(min_value=8, max_value=40).flatmap(lambda nodes: st.tuples(st.just(nodes), st.data())))
def test_partners_of_a_node_known_to_be_bad_are_not_blamed(case: tuple[int, st.DataObject]) -> None:
    nodes, data = case
    bad = data.draw(st.integers(min_value=0, max_value=nodes - 1))
    found = judge_pairs(outcomes(nodes, failed=frozenset(pairs_of(nodes, bad))), known_bad={f"n{bad}"})
    assert not found.bad and not found.doubtful and not found.links
    assert f"n{bad}" not in found.good


def test_two_bad_nodes_that_also_met_each_other_are_both_named() -> None:
    failed = frozenset(pairs_of(8, 2)) | frozenset(pairs_of(8, 3))
    assert judge_pairs(outcomes(8, failed=failed)).bad.keys() == {"n2", "n3"}


def test_two_nodes_that_fail_with_each_other_are_both_in_doubt() -> None:
    found = judge_pairs(outcomes(2, failed=frozenset({(0, 1)})))
    assert found.links == (("n0", "n1"),)
    assert not found.bad and not found.good


def test_where_all_pairs_fail_no_node_is_called_bad() -> None:
    for nodes in (3, 4, 5, 9):
        failed = frozenset(chain.from_iterable(rounds(nodes)))
        found = judge_pairs(outcomes(nodes, failed=failed))
        assert not found.bad and not found.doubtful
        assert set(found.links) == {tuple(sorted((f"n{one}", f"n{other}"))) for one, other in failed}
