"""A shard that comes piece by piece, hashed behind the pieces."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES, check, chunks_of
from holdfast_vault.filling.filling import Filling, OutOfOrder
from holdfast_vault.shelf.segments import Segment

NBYTES = 2 * CHUNK_BYTES + 100
STEP = SealedStep(generation=1, step=7)


def filling() -> Filling:
    return Filling(Segment("test", NBYTES), STEP, b"index", b"objects")


def test_the_seal_is_that_of_all_bytes_however_they_came() -> None:
    it = filling()
    data = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8)
    reached = 0
    for up_to in (10, CHUNK_BYTES, CHUNK_BYTES + 1, NBYTES - 1, NBYTES):
        it.segment.memory[reached:up_to] = data[reached:up_to]
        it.reach(up_to)
        reached = up_to
    contents = it.contents()
    check(contents.seal, (b"index", b"objects"), data, "the shard")
    assert contents.sealed == STEP and len(contents.seal.chunks) == chunks_of(NBYTES) == 3


def test_only_chunks_that_are_complete_are_hashed() -> None:
    it = filling()
    it.reach(2 * CHUNK_BYTES - 1)
    it.segment.memory[CHUNK_BYTES:] = 1  # comes later
    it.reach(NBYTES)
    check(it.contents().seal, (b"index", b"objects"), it.segment.memory, "the shard")


def test_what_has_not_come_to_its_end_has_no_seal() -> None:
    it = filling()
    it.reach(NBYTES - 1)
    with pytest.raises(OutOfOrder, match="not whole"):
        it.contents()


@pytest.mark.parametrize("up_to", [-1, 9, NBYTES + 1])
def test_progress_that_cannot_be_is_refused(up_to: int) -> None:
    it = filling()
    it.reach(10)
    with pytest.raises(OutOfOrder):
        it.reach(up_to)
