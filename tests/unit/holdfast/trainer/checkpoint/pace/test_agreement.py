"""Votes in a store of torch's: all ranks go on with one distance, and training goes on without a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from holdfast.trainer.checkpoint.pace.agreement import Agreed, Alone, Ballots, InThread, Objection
from holdfast.trainer.checkpoint.pace.spacing import Costs, Vote

COSTS = Costs(0.1, 1.0)
RANKS = 3


@pytest.fixture(params=["tcp", "hash", "file"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Store]]:
    """How a rank connects to the store of its job."""
    if request.param == "tcp":
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield lambda: TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    elif request.param == "hash":
        shared = HashStore()
        yield lambda: shared
    else:
        path = tmp_path_factory.mktemp("store") / "file"
        yield lambda: FileStore(str(path), RANKS)


def ranks_of(stores: Callable[[], Store]) -> list[InThread]:
    return [InThread(Ballots(PrefixStore("job", stores()), "keep/1", rank, RANKS)) for rank in range(RANKS)]


def agreed(ranks: list[InThread], window: int, every: int, *votes: Vote) -> list[Agreed | None]:
    for rank, vote in zip(ranks, votes, strict=True):
        rank.vote(window, vote, COSTS)
    for rank in ranks:
        rank.close(window, every)
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(lambda rank: rank.result(window), ranks))


def distances(found: list[Agreed | None]) -> list[int | None]:
    return [it.every if it is not None else None for it in found]


def test_all_ranks_go_on_with_one_distance_whenever_they_count(stores: Callable[[], Store]) -> None:
    ranks = ranks_of(stores)
    every = 1
    for window in range(20):
        votes = [[Vote.CLOSER, Vote.SAME, Vote.WIDER][(window * 7 + 5 * rank) % 3] for rank in range(RANKS)]
        found = distances(agreed(ranks, window, every, *votes))
        assert len(set(found)) == 1 and found[0] is not None
        every = found[0]


def test_rank_0_learns_who_asked_for_a_wider_spacing_and_why(stores: Callable[[], Store]) -> None:
    ranks = ranks_of(stores)
    for number, vote in ((0, Vote.CLOSER), (2, Vote.WIDER), (1, Vote.CLOSER)):
        ranks[number].vote(4, vote, COSTS)
        ranks[number].close(3, 1)  # of a window without votes
        ranks[number].result(3)  # so the vote is in the store
    for rank in ranks:
        rank.close(4, 1)
    assert [rank.result(4) for rank in ranks] == [Agreed(2, Objection(2, COSTS)), Agreed(2), Agreed(2)]


def test_a_count_that_came_before_a_vote_stands(stores: Callable[[], Store]) -> None:
    one, other, last = ranks_of(stores)
    for rank in (one, other):
        rank.vote(1, Vote.WIDER, COSTS)
    one.close(1, 1)
    assert one.result(1) == Agreed(1)
    last.vote(1, Vote.WIDER, COSTS)
    for rank in (other, last):
        rank.close(1, 1)
        assert rank.result(1) == Agreed(1)


def test_the_store_does_not_fill_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = ranks_of(lambda: server)
    before = server.num_keys()
    for window in range(50):
        assert None not in agreed(ranks, window, 1 if window % 2 == 0 else 2, *[Vote.CLOSER] * 2, Vote.WIDER)
    # Rank 0 removes what is old when it has what is new.
    limit = time.monotonic() + 30
    while server.num_keys() - before > 9 and time.monotonic() < limit:
        time.sleep(0.01)
    assert server.num_keys() - before <= 9


def test_without_an_answer_the_distance_stays_and_no_rank_changes_it_any_more() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    silent = InThread(_Silent(server), waits_s=0.05)
    other = InThread(Ballots(server, "keep/1", 0, 2))
    silent.vote(1, Vote.WIDER, COSTS)
    silent.close(1, 4)
    assert silent.result(1) is None
    other.vote(1, Vote.WIDER, COSTS)
    other.close(1, 4)
    assert other.result(1) == Agreed(4)
    # An interpreter that ends while a thread waits in the store's code aborts.
    server.set("never", "")
    silent.end()
    assert silent._thread is not None
    silent._thread.join(10.0)
    assert not silent._thread.is_alive()


class _Silent(Ballots):
    """Its first operation waits for a key that never comes."""

    def __init__(self, server: TCPStore) -> None:
        super().__init__(TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False), "keep/1", 1, 2)

    def vote(self, window: int, vote: Vote, costs: Costs | None) -> None:
        self._store.wait(["never"], timedelta(seconds=0.5))


def test_a_store_that_is_gone_ends_the_votes_at_once() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = InThread(Ballots(TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False), "k", 0, 2))
    rank.vote(1, Vote.CLOSER, None)
    rank.close(1, 2)
    assert rank.result(1) == Agreed(2)
    del server
    began = time.monotonic()
    rank.vote(2, Vote.CLOSER, None)
    rank.close(2, 2)
    assert rank.result(2) is None and time.monotonic() - began < 4


def test_a_rank_that_is_alone_follows_its_own_vote() -> None:
    alone = Alone()
    alone.vote(1, Vote.WIDER, COSTS)
    alone.close(1, 1)
    assert alone.result(1) == Agreed(2, Objection(0, COSTS))
    alone.close(2, 2)  # without a vote
    assert alone.result(2) == Agreed(2)
    alone.vote(3, Vote.CLOSER, COSTS)
    alone.close(3, 2)
    assert alone.result(3) == Agreed(1)
