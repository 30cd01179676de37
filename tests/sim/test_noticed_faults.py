"""The checker of lost memory can fail: with a fault in what decides, some of the first histories go wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import Seal
from holdfast.orders.backup import Replica, VaultAddress
from holdfast.topology import Topology
from holdfast_ckpt.plan import backups
from holdfast_ckpt.plan.backup_plan import BackupPlan, BackupStrategy, plan_backups
from holdfast_ckpt.plan.records import JobBackups
from holdfast_vault.peers.sending import replicas
from holdfast_vault.shelf import shelf
from holdfast_vault.shelf.wanted_steps import KEPT_MIN
from tests.sim.test_lost_memory import Failed, history

TRIED = 150
_share_of, _replica, _sources = replicas.share_of, backups._replica, backups._sources


def share_by_rank(alike: Sequence[int], rank: int) -> slice:
    """Two replicas may have the same share, and nobody another one."""
    return slice(rank % len(alike) // 2, None, len(alike))


def sent_unseen(seal: Seal, alike: Sequence[int], hashes: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """What a replica has at the same place is left out, be it the same or not."""
    numbers = range(len(seal.chunks))
    return frozenset(number for rank, theirs in hashes.items() if theirs for number in numbers[_share_of(alike, rank)])


def needed_unsent(
    sealed: Iterable[SealedStep], sent: Collection[SealedStep], pinned: Collection[SealedStep]
) -> frozenset[SealedStep]:
    """What was sent is not needed."""
    there = sorted(sealed, reverse=True)
    return frozenset(there[:KEPT_MIN]) | {step for step in there if step in pinned}


def needed_once(
    sealed: Iterable[SealedStep], sent: Collection[SealedStep], pinned: Collection[SealedStep]
) -> frozenset[SealedStep]:
    """Of what was sent the last is needed only."""
    return needed_unsent(sealed, (), pinned) | ({*sealed} & {*list(sent)[-1:]})


def kept_inside(topology: Topology, strategy: BackupStrategy, racks: Sequence[str]) -> BackupPlan:
    """Neighbours keep copies, and it is said that they are outside of each other's groups."""
    pairs = plan_backups(topology, BackupStrategy.PAIRS).keeper
    return msgspec.structs.replace(plan_backups(topology, strategy, racks), keeper=pairs)


def no_sources(layout: Any, past: Any, held: Any) -> tuple[tuple[VaultAddress, ...], ...]:
    """Nobody is asked for what was before."""
    return ((),) * len(layout.nodes)


def no_keepers(layout: Any, past: Any, held: Any) -> tuple[tuple[VaultAddress, ...], ...]:
    """The likeliest is forgotten."""
    return tuple(each[1:] for each in _sources(layout, past, held))


def replica_alone(plan: JobBackups, node_rank: int) -> Replica:
    """Who keeps the copies of a replica is not asked."""
    return msgspec.structs.replace(_replica(plan, node_rank), others=())


@pytest.mark.parametrize(
    ("place", "fault", "first"),
    [
        ((replicas, "share_of"), share_by_rank, 7),
        ((replicas, "sent_by_others"), sent_unseen, 0),
        ((shelf, "needed"), needed_unsent, 9),
        ((shelf, "needed"), needed_once, 15),
        ((shelf.Shelf, "keep_only"), lambda shelf, cut: None, 4),
        ((backups, "plan_backups"), kept_inside, 22),
        ((backups, "_sources"), no_sources, 10),
        ((backups, "_sources"), no_keepers, 10),
        ((backups, "_replica"), replica_alone, 57),
    ],
)
def test_a_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: tuple[object, str], fault: Callable[..., object], first: int
) -> None:
    monkeypatch.setattr(*place, fault)
    with pytest.raises(Failed, match=r"is left|promised|nowhere|nobody gives|come to an end"):
        histories(first)


def histories(first: int) -> None:
    """From the first that showed it, as many as it takes once its seed stands for another; raises Failed."""
    for seed in range(first, first + TRIED):
        history(seed)
