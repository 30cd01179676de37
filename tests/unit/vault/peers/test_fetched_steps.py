"""Which of the steps that other nodes offer a rank may take."""

from __future__ import annotations

import pytest

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault.assignments import Assignment, Assignments, JobId
from holdfast_vault.cuts import Cut
from holdfast_vault.notices import Notices
from holdfast_vault.peers.fetching import fetcher
from holdfast_vault.peers.fetching.discovery import FoundShards
from holdfast_vault.peers.fetching.fetcher import Fetcher
from holdfast_vault.peers.peer_messages import RankSteps
from holdfast_vault.shelf.shelves import Shelves

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)
FIRST, POISONED = SealedStep(generation=1, step=1), SealedStep(generation=1, step=2)
OTHER = VaultAddress(node="other", host="127.0.0.1", port=1)


def test_what_a_rank_left_behind_is_not_offered_by_a_node_that_has_not_learned_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = BackupOrder(
        node="own", job="job", submitted_ms=1, world_size=2, generation=2, node_rank=0, nproc_per_node=1, every=1
    )
    assignments, shelves = Assignments(), Shelves()
    shelves.serve(JobId("job", 1, 2))
    assert assignments.put(Assignment(order, "token")) is None
    offered = FoundShards([(OTHER, RankSteps(name=NAME, sealed=(POISONED, FIRST)))])
    monkeypatch.setattr(fetcher, "find_shards", lambda _: offered)
    # What is listed is not fetched ahead: nothing is at that address.
    monkeypatch.setattr(Fetcher, "_prefetch", lambda *_: None)
    vault = Fetcher(shelves, assignments, Notices())
    assert vault.steps(NAME, 2) == [POISONED, FIRST]
    shelves.of(NAME).keep_only(Cut(generation=2, at_ns=1, kept=FIRST))
    assert vault.steps(NAME, 2) == [FIRST]
