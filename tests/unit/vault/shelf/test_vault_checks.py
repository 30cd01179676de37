"""Checks of shards in memory, begun before anybody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES, seal
from holdfast_vault.shelf import shard_checks
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shard_checks import GOOD_S, ShardChecks
from holdfast_vault.shelf.shelf import Shelf

NBYTES = 5 * CHUNK_BYTES + 77
NEWEST = SealedStep(generation=1, step=2)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """Two sealed steps."""
    it = Shelf("holdfast-test")
    for step in (1, 2):
        segment = it.claim(NBYTES)
        segment.memory[:] = np.arange(NBYTES, dtype=np.uint32).astype(np.uint8) + step
        sealed = SealedStep(generation=1, step=step)
        it.seal(segment, SealedContents(sealed=sealed, index=b"", objects=b"", seal=seal((), segment.memory)))
    yield it
    it.close()


def newest(shelf: Shelf) -> Segment:
    with shelf.holding(NEWEST) as held:
        assert held is not None
        return held[0]


def damaged(these: ShardChecks, shelf: Shelf) -> tuple[int, ...]:
    with shelf.holding(NEWEST) as held:
        assert held is not None
        return these.damaged(*held)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_damaged_chunk_is_named(shelf: Shelf, threads: int) -> None:
    these = ShardChecks(threads)
    assert damaged(these, shelf) == ()
    for place in (0, 3 * CHUNK_BYTES - 1, NBYTES - 1):
        newest(shelf).memory[place] ^= 1
    assert damaged(these, shelf) == (0, 2, 5)


def test_what_was_looked_at_ahead_serves_one_who_asks_and_the_next_has_it_looked_at_again(shelf: Shelf) -> None:
    these = ShardChecks(2)
    these.ahead(shelf).join()
    with mock.patch.object(shard_checks, "chunk_hash", side_effect=AssertionError("looked at again")):
        assert damaged(these, shelf) == ()
    newest(shelf).memory[5] ^= 1
    assert damaged(these, shelf) == (0,)


def test_damage_that_was_there_when_the_rank_ended_is_found_ahead(shelf: Shelf) -> None:
    these = ShardChecks(1)
    newest(shelf).memory[CHUNK_BYTES] ^= 1
    these.ahead(shelf).join()
    assert damaged(these, shelf) == (1,)


def test_a_check_of_long_ago_is_made_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    these = ShardChecks(1)
    these.ahead(shelf).join()
    newest(shelf).memory[CHUNK_BYTES] ^= 1
    now = shard_checks.time.monotonic()
    monkeypatch.setattr(shard_checks.time, "monotonic", lambda: now + GOOD_S + 1)
    assert damaged(these, shelf) == (1,)


def test_a_check_is_of_what_is_there_now_and_not_of_what_was_overwritten(shelf: Shelf) -> None:
    these = ShardChecks(1)
    these.ahead(shelf).join()
    segment = newest(shelf)
    shelf.seal(segment, SealedContents(sealed=NEWEST, index=b"", objects=b"", seal=seal((), segment.memory)))
    segment.memory[CHUNK_BYTES] ^= 1
    assert damaged(these, shelf) == (1,)


def test_a_check_from_before_a_repair_says_nothing(shelf: Shelf) -> None:
    these, segment = ShardChecks(1), newest(shelf)
    segment.memory[CHUNK_BYTES] ^= 1
    these.ahead(shelf).join()
    segment.memory[CHUNK_BYTES] ^= 1
    these.forget(segment)
    assert damaged(these, shelf) == ()


def test_nothing_is_looked_at_where_there_is_nothing() -> None:
    ShardChecks(1).ahead(Shelf("holdfast-test")).join()
