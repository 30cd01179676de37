"""Who is asked for which chunk: nobody for what he lacks, and everybody while there is hope."""

from __future__ import annotations

import random

import pytest

from holdfast_vault.peers.fetching.chunk_queue import TRIES, ChunkQueue


def test_sources_take_turns_and_give_what_they_have() -> None:
    queue = ChunkQueue(range(4), ["a", "b"])
    queue.lacks("a", [0, 2])
    assert [queue.take("a"), queue.take("a"), queue.take("a")] == [1, 3, None]
    assert [queue.take("b"), queue.take("b"), queue.take("b")] == [0, 2, None]
    for source, number in (("a", 1), ("a", 3), ("b", 0)):
        queue.done(source, number)
    assert (queue.missing, queue.is_whole, queue.is_quiet) == ([2], False, False)
    queue.done("b", 2)
    assert queue.is_whole and queue.is_quiet and not queue.is_hopeless
    assert queue.given == {"a": 2, "b": 2}


def test_what_one_cannot_give_is_anothers_to_give() -> None:
    queue = ChunkQueue([7], ["a", "b"])
    for _ in range(TRIES):
        assert queue.take("a") == 7
        queue.spoiled("a", 7)
    assert queue.failures("a", 7) == TRIES
    assert queue.take("a") is None
    assert queue.take("b") == 7
    # The connection broke, and there is another one.
    queue.put_back("b")
    assert queue.take("b") == 7
    assert not queue.is_hopeless
    queue.leave("b")
    assert queue.is_hopeless and queue.missing == [7]


def test_what_comes_still_comes_when_something_else_is_had_from_nobody() -> None:
    queue = ChunkQueue([0, 1], ["a"])
    assert queue.take("a") == 0
    queue.lacks("a", [1])
    # Not yet: what is on its way is worth having.
    assert not queue.is_hopeless
    queue.done("a", 0)
    assert queue.is_hopeless and queue.missing == [1]


def test_without_sources_there_is_no_hope_but_for_nothing() -> None:
    assert ChunkQueue[str]([1], []).is_hopeless
    assert ChunkQueue[str]([], []).is_whole


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_all_that_somebody_has_comes(seed: int) -> None:
    draw = random.Random(seed)
    chunks, sources = range(draw.randint(1, 12)), range(draw.randint(1, 5))
    has = {source: {number for number in chunks if draw.random() < 0.5} for source in sources}
    queue = ChunkQueue(chunks, sources)
    came: list[int] = []
    present, owed = set(sources), {source: list[int]() for source in sources}
    for _ in range(10_000):
        if queue.is_whole or queue.is_hopeless or not present:
            break
        source = draw.choice(sorted(present))
        if draw.random() < 0.02:
            queue.leave(source)
            present.discard(source)
            continue
        if draw.random() < 0.1:
            queue.put_back(source)
            owed[source].clear()
        if draw.random() < 0.6 and (taken := queue.take(source)) is not None:
            owed[source].append(taken)
        elif owed[source]:
            number = owed[source].pop(0)
            if number in has[source]:
                queue.done(source, number)
                came.append(number)
            else:
                queue.lacks(source, [number])
    assert len(set(came)) == len(came)
    assert sorted([*came, *queue.missing]) == list(chunks)
    for number in queue.missing:
        assert not any(number in has[source] for source in present)
