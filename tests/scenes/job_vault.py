"""What a node's vault has of a job, and how it fails, in place of the client and its connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import Former, SealedStep, ShardName, Steps
from holdfast.node.vault.seals import BrokenSeal
from holdfast.trainer.checkpoint import Checkpointer, memory_tier
from holdfast.trainer.checkpoint.memory_tier import VAULT_VARIABLE
from holdfast.trainer.vault_client.client import Shard
from holdfast.trainer.vault_client.shard_layout import entries_of, lay, place, take_apart

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)


class Vault:
    """What the node has, and how it fails; it takes the place of the client and its connection."""

    def __init__(self, *steps: int) -> None:
        self.states: dict[SealedStep, dict[str, Any]] = {
            SealedStep(generation=1, step=step): {"x": step} for step in steps
        }
        self.of_four: dict[SealedStep, dict[str, Any]] = {}
        """What is here of the job from when it had four ranks."""
        self.cuts: list[SealedStep | None] = []
        self.from_disk = False
        self.certified: int | None = None
        self.broken = False
        self.connections_lost = 0
        self.calls_lost = 0

    def connect(self, *_: object, **__: object) -> Vault:
        if self.connections_lost:
            self.connections_lost -= 1
            raise WireError("no vault answers")
        return self

    def kept(self, at_most: int | None = None) -> Steps:
        return Steps(sealed=tuple(sorted(self.states, reverse=True)))

    def restore(self, sealed: SealedStep, *, to_device: bool = False) -> dict[str, Any]:
        if self.calls_lost:
            self.calls_lost -= 1
            raise WireError("the connection has ended")
        if self.broken:
            raise BrokenSeal("flipped")
        return self.states[sealed]

    def former(self) -> Former:
        return Former(world_size=4, sealed=tuple(sorted(self.of_four, reverse=True))) if self.of_four else Former()

    def former_shard(self, sealed: SealedStep) -> Shard:
        leaves, objects = take_apart(self.of_four[sealed])
        layout, _, nbytes = lay([place(leaf, leaf.tensor.data_ptr()) for leaf in leaves])
        memory = np.zeros(nbytes, np.uint8)
        for entry, leaf in zip(entries_of(layout), leaves, strict=True):
            memory[entry.offset : entry.offset + leaf.tensor.nbytes] = leaf.tensor.numpy().view(np.uint8)
        return Shard(layout, objects, memory)

    def certified_up_to(self) -> int | None:
        if self.calls_lost:
            self.calls_lost -= 1
            raise WireError("the connection has ended")
        return self.certified

    def keep_only(self, sealed: SealedStep | None, *, from_disk: bool = False) -> None:
        self.cuts.append(sealed)
        self.from_disk = from_disk

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_RESTORE_STEP", "HOLDFAST_JOB_DIR", "HOLDFAST_MESH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VAULT_VARIABLE, str(tmp_path))
    monkeypatch.setenv("HOLDFAST_JOB", "job")
    monkeypatch.setenv("HOLDFAST_GENERATION", "2")


def serve(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> Vault:
    monkeypatch.setattr(memory_tier, "VaultClient", vault.connect)
    return vault


def saved(directory: Path, *steps: int) -> Checkpointer:
    checkpointer = Checkpointer(directory)
    for step in steps:
        checkpointer.save(step, {"x": step})
    return checkpointer


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(generation=generation, step=step)
