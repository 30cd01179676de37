"""Steps go from the memory of real vaults to a real directory, and to a store that speaks S3, while ranks go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import vault_nodes
from vault_nodes import VaultNode, at, order_of, shard, state, until

from holdfast.trainer.checkpoint_folder import DirectoryFolder, StepState, whole_manifest
from holdfast.trainer.checkpoint_format import PartReader, plan_part
from holdfast.trainer.checkpoint_state import KeyedState
from holdfast.trainer.checkpoint_storage import DirectoryStorage
from holdfast.trainer.checkpoint_verify import verify
from holdfast.trainer.memory import VaultClient
from holdfast.vault_wire import Persisted, PersistTo

pytestmark = pytest.mark.integration
node = vault_nodes.node


class Rank:
    """A rank that keeps steps as the Checkpointer does."""

    def __init__(self, client: VaultClient, rank: int) -> None:
        self.client = client
        self._rank = rank
        self._state: dict[str, Any] = {"weights": torch.empty(0), "step": 0}

    def keep(self, step: int, chunks: float = 2.5) -> None:
        self._state = {f"rank-{self._rank}": state(step, chunks)}
        # The first replica of each entry is this rank, whatever its number.
        keyed = KeyedState(self._state, 0)
        self.client.save(step, self._state, lambda: keyed.part_plan(plan_part(self._state, keyed.writes)))


@contextmanager
def rank_of(
    node: VaultNode, rank: int, place: str | Path, *, world_size: int = 2, generation: int = 1, keep: int = 3
) -> Iterator[Rank]:
    to = PersistTo(place=str(place), steps_max=keep, mesh={"dp": world_size})
    client = VaultClient(node.directory, shard(rank, world_size), generation, to)
    yield Rank(client, rank)
    client.close()


def has(storage: DirectoryStorage, step: int) -> bool:
    return step in storage.steps()


def is_whole(place: Path, step: int, ranks: int) -> bool:
    """Whether every tensor of every rank is there, bit for bit."""
    folder = DirectoryFolder(place / f"step-{step:08d}")
    manifest = whole_manifest(folder)
    assert verify(folder, threads=1, on_bytes=lambda _: None).damage == ()
    assert (manifest.world_size, manifest.mesh, len(manifest.parts)) == (ranks, {"dp": ranks}, ranks)
    reader = PartReader(DirectoryStorage(place), step, manifest.parts, lambda _: True)
    assert sorted(reader.metadata().state_dict_metadata) == sorted(
        f"rank-{rank}.{key}" for rank in range(ranks) for key in ("step", "weights")
    )
    return True


def test_every_so_many_steps_are_on_the_disk_once_all_nodes_have_written_them(
    node: Callable[..., VaultNode], tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    storage = DirectoryStorage(place)
    one, other = node("one"), node("other")
    told = one.follow()
    for number, each in enumerate((one, other)):
        each.assign(order_of(each.node, node_rank=number, persist_every=3))
    with rank_of(one, 0, place, keep=2) as first, rank_of(other, 1, place, keep=2) as second:
        for step in range(1, 5):
            first.keep(step)
        # One of two nodes has written it: nothing is there yet.
        until("it is written", lambda: bool(list(place.glob("generation-1.job.1/vault-step-00000003/written-by-*"))))
        assert storage.steps() == []
        for step in range(1, 5):
            second.keep(step)
        until("step 3 is there", lambda: has(storage, 3))
        assert is_whole(place, 3, ranks=2)
        for step in range(5, 13):
            first.keep(step)
            second.keep(step)
            if step % 3 == 0:
                until(f"step {step} is there", lambda step=step: has(storage, step))
        until("older ones are gone", lambda: sorted(storage.steps()) == [9, 12])
        assert is_whole(place, 12, ranks=2)
    notices = [told() for _ in range(4)]
    assert [(it.sealed, it.nbytes > 0) for it in notices if isinstance(it, Persisted)] == [
        (at(step), True) for step in (3, 6, 9, 12)
    ]
    until("nothing else is left", lambda: [it.state for it in storage.survey()] == [StepState.COMPLETE] * 2)
