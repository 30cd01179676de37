"""Rows that are stored by their changes are read as they were."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.growing import GrowingSet
from holdfast.store import Table
from holdfast.store.changes import ABSENT, Seen, UnknownChange, apply, change_between, change_to, row_of
from holdfast.store.in_memory import MemoryDatabase, MemoryStore
from holdfast.store.jsonb import storable_json


class Inner(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="inner"):
    count: int = 0
    names: tuple[str, ...] = ()


class Other(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag="other"):
    count: int = 0


class Short(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A struct whose JSON lacks what is default."""

    names: tuple[str, ...] = ()
    count: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    phase: Inner | Other = Inner()
    short: Short = Short()
    found: Inner | None = None
    seen: frozenset[str] = frozenset()
    by_node: dict[str, tuple[int, ...]] = {}
    by_rank: dict[int, str] = {}
    nodes: GrowingSet = GrowingSet()


class EarlierRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row as a version before `by_node` wrote it."""

    found: Inner | None = None


WORDS = st.sampled_from(["a", "b\x00", "ü", "set"])
NAMES = st.lists(WORDS, max_size=3).map(tuple)
INNER = st.builds(Inner, count=st.integers(0, 2), names=NAMES)
ROWS = st.builds(
    Row,
    phase=st.one_of(INNER, st.builds(Other, count=st.integers(0, 2))),
    short=st.builds(Short, names=NAMES, count=st.integers(0, 1)),
    found=st.one_of(st.none(), INNER),
    seen=st.frozensets(WORDS, max_size=3),
    by_node=st.dictionaries(WORDS, st.lists(st.integers(0, 2), max_size=2).map(tuple), max_size=3),
    by_rank=st.dictionaries(st.integers(0, 3), WORDS, max_size=3),
    nodes=NAMES.map(GrowingSet),
)


def read(row: Row) -> Row:
    return row_of(Row, storable_json(row), [])


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_any_sequence_of_rows_is_read_from_its_changes(rows: list[Row]) -> None:
    rows = [read(row) for row in rows]
    changes = [storable_json(change_between(*pair) or {"in": {}}) for pair in pairwise(rows)]
    assert row_of(Row, storable_json(rows[0]), changes) == rows[-1]


def test_a_change_names_what_changed() -> None:
    before = Row(nodes=GrowingSet(["a"]), phase=Inner(names=("x",)), by_node={"a": (1,), "b": (2,)})
    after = msgspec.structs.replace(
        before, nodes=before.nodes | {"b"}, phase=Inner(count=1, names=("x", "y")), by_node={"a": (1,), "c": (3,)}
    )
    assert change_between(before, after) == {
        "in": {
            "phase": {"in": {"count": {"set": 1}, "names": {"more": ["y"]}}},
            "by_node": {"put": {"c": (3,)}, "cut": ["b"]},
            "nodes": {"more": ["b"]},
        }
    }
    assert change_between(after, after) is None


def test_the_whole_is_written_first_and_once_its_changes_are_larger() -> None:
    row = Row(nodes=GrowingSet(["a"]))
    later = msgspec.structs.replace(row, nodes=row.nodes | {"b"})
    change = storable_json(change_between(row, later))
    assert change_to(None, later) is None
    assert change_to(Seen(ABSENT, None), later) is None
    assert change_to(Seen(1, row, 1000, 1000 - len(change)), later) == change
    assert change_to(Seen(1, row, 1000, 1001 - len(change)), later) is None


async def test_a_row_of_an_earlier_version_is_written_whole_before_it_is_changed() -> None:
    database = MemoryDatabase()
    earlier = Table(name="jobs", row_type=EarlierRow, columns=lambda _: {}, changes="job_changes")
    table = Table(name="jobs", row_type=Row, columns=lambda _: {}, changes="job_changes")
    async with MemoryStore(database).transaction() as tx:
        await tx.save(earlier, "j", EarlierRow(found=Inner(names=("x",) * 100)))
    store = MemoryStore(database)
    async with store.transaction() as tx:
        row = (await tx.load_all(table))["j"]
    later = msgspec.structs.replace(row, by_node={"a": (1,)})
    async with store.transaction() as tx:
        await tx.save(table, "j", later)
    async with MemoryStore(database).transaction() as tx:
        assert await tx.load(table, "j") == later


@pytest.mark.parametrize("change", [{"swap": 1}, {}, None, {"put": {}}])
def test_a_change_of_a_later_version_is_refused(change: Any) -> None:
    with pytest.raises(UnknownChange):
        apply(change, {})
