"""Collections that share their elements with earlier versions: each version keeps what it had."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.growing import GrowingMap, GrowingSet, from_json, to_json

KEYS = st.sampled_from("abcde")


class Row(msgspec.Struct, frozen=True):
    nodes: GrowingSet = GrowingSet()


@given(st.lists(st.tuples(st.integers(0, 30), KEYS, st.integers(0, 2)), max_size=30))
def test_versions_are_as_if_each_had_been_copied(steps: list[tuple[int, str, int]]) -> None:
    versions: list[tuple[GrowingMap[int], dict[str, int]]] = [(GrowingMap(), {})]
    for of, key, value in steps:
        base, expected = versions[of % len(versions)]
        versions.append((base.having(key, value), {**expected, key: value}))
    for version, expected in versions:
        assert dict(version) == expected
        assert len(version) == len(expected)
        assert list(version) == list(expected)
        for other, others in versions:
            assert (version == other) == (expected == others)
            if (added := version.since(other)) is not None:
                assert {**others, **added} == expected


@given(st.lists(st.tuples(st.integers(0, 30), KEYS), max_size=30))
def test_sets_are_as_if_each_had_been_copied(steps: list[tuple[int, str]]) -> None:
    versions: list[tuple[GrowingSet, frozenset[str]]] = [(GrowingSet(), frozenset())]
    for of, key in steps:
        base, expected = versions[of % len(versions)]
        versions.append((base | {key}, expected | {key}))
    for version, expected in versions:
        assert version == expected and expected == version
        assert (version >= {"a", "b"}) == (expected >= {"a", "b"})
        for other, others in versions:
            assert (version == other) == (expected == others)
            if (added := version.since(other)) is not None:
                assert others.isdisjoint(added) and others | set(added) == expected


def test_a_default_is_shared_and_stays_empty() -> None:
    one, other = Row().nodes | {"a"}, Row().nodes | {"b"}
    assert (set(one), set(other), set(Row().nodes)) == ({"a"}, {"b"}, set())


def test_the_next_version_has_no_copy_of_the_one_before() -> None:
    nodes = GrowingSet(f"node-{number}" for number in range(1000))
    later = nodes | {"another"}
    assert later.since(nodes) == ["another"]
    assert (nodes | {"node-1"}) is nodes, "nothing new"
    assert (nodes | {"a third"}).since(nodes) is None, "from an older version it is a copy"


def test_in_json_a_set_is_an_array() -> None:
    row = Row(GrowingSet(["b", "a"]))
    body = msgspec.json.encode(row, enc_hook=to_json)
    assert body == b'{"nodes":["b","a"]}'
    assert msgspec.json.decode(body, type=Row, dec_hook=from_json) == row


def test_values_that_were_replaced_are_forgotten() -> None:
    counts = GrowingMap({"a": 0, "b": 0})
    for number in range(1000):
        counts = counts.having("a", number)
    assert dict(counts) == {"a": 999, "b": 0}
    assert len(counts._history.keys) < 50
