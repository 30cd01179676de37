"""Ids are UUIDs of RFC 9562, sorted by time, and the same each time that they are derived."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from holdfast.fresh_ids import uuid7
from holdfast.ids import NTH_MAX, derived_id, named_id, uuid7_of

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
MS = int(AT.timestamp() * 1000)
PARENT = uuid7_of(MS, bytes(range(10)))


def test_an_id_is_a_uuid_of_version_7_with_its_time() -> None:
    made = UUID(uuid7(MS))
    assert (made.version, made.variant, made.int >> 80) == (7, "specified in RFC 4122", MS)
    assert uuid7(MS) < uuid7(MS + 1) and uuid7(MS) != uuid7(MS)


def test_a_derived_id_has_its_parents_time_and_the_digest_of_its_names() -> None:
    derived = derived_id(PARENT, "progress", 3)
    assert derived == uuid7_of(MS, uuid5(UUID(PARENT), "progress/3").bytes) == derived_id(PARENT, "progress", 3)
    assert derived not in (derived_id(PARENT, "progress", 4), PARENT)


def test_those_of_one_decision_sort_by_their_number() -> None:
    numbered = [derived_id(PARENT, "said", number, nth=number) for number in (0, 1, 17, NTH_MAX)]
    assert numbered == sorted(numbered)
    assert UUID(numbered[-1]).version == 7 and derived_id(PARENT, nth=NTH_MAX + 1) == derived_id(PARENT, nth=NTH_MAX)


def test_a_named_id_is_of_its_time_and_names() -> None:
    assert named_id(AT, "hang", 2) == uuid7_of(MS, uuid5(NAMESPACE_OID, "hang/2").bytes)


@pytest.mark.parametrize("parent", ["", "job-1", PARENT[:-1], PARENT + "0", "z" + PARENT[1:]])
def test_nothing_follows_from_what_is_no_id(parent: str) -> None:
    with pytest.raises(ValueError, match=r"UUID|hexadecimal"):
        derived_id(parent, "x")
