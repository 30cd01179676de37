"""Replicas send what they have in common once: each its share of the chunks; who has the same leaves them out."""

from __future__ import annotations

import os
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.vault.messages import SealedStep
from holdfast.node.vault.seals import CHUNK_BYTES, Seal
from holdfast.orders.backup import BackupOrder, Replica, VaultAddress
from holdfast.topology import Mesh
from holdfast_ckpt.plan.replica_groups import replicas_of
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers.chunk_sets import packed, unpacked
from holdfast_vault.peers.sending.replicas import holders_of, sent_by_others, share_of
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf

hashes = st.lists(st.integers(0, 3), max_size=12)


def seal_of(chunks: list[int]) -> Seal:
    return Seal(nbytes=len(chunks) * CHUNK_BYTES, chunks=tuple(chunks), notes=())


@given(st.lists(hashes, min_size=1, max_size=5))
def test_every_chunk_is_sent_by_somebody_who_has_it(contents: list[list[int]]) -> None:
    alike = tuple(range(10, 10 + len(contents)))
    seals = {rank: seal_of(chunks) for rank, chunks in zip(alike, contents, strict=True)}
    shares = {rank: seals[rank].chunks[share_of(alike, rank)] for rank in alike}
    left_out = {
        rank: sent_by_others(seals[rank], alike, {other: shares[other] for other in alike if other != rank})
        for rank in alike
    }
    for rank in alike:
        for number in left_out[rank]:
            sender = alike[number % len(alike)]
            assert sender != rank
            assert number not in left_out[sender]
            assert seals[sender].chunks[number] == seals[rank].chunks[number]


@pytest.mark.parametrize(("replicas", "chunks"), [(2, 7), (3, 7), (8, 512)])
def test_replicas_that_are_the_same_send_everything_once(replicas: int, chunks: int) -> None:
    seal, alike = seal_of(list(range(chunks))), tuple(range(replicas))
    sent = [
        set(range(chunks))
        - sent_by_others(seal, alike, {other: seal.chunks[share_of(alike, other)] for other in alike if other != rank})
        for rank in alike
    ]
    assert sorted(chain(*sent)) == list(range(chunks))


def test_what_a_replica_does_not_say_in_time_is_sent() -> None:
    seal, alike = seal_of([1, 2, 3, 4, 5, 6]), (4, 5, 6)
    assert sent_by_others(seal, alike, {5: (), 6: (3, 6)}) == {2, 5}
    # What both have counts, be the rest of another size, or nonsense.
    assert sent_by_others(seal, alike, {5: (2,), 6: (3, 7, 9)}) == {1, 2}


@given(st.frozensets(st.integers(0, 40)))
def test_sets_of_chunks_travel(numbers: frozenset[int]) -> None:
    assert unpacked(packed(numbers), 41 * CHUNK_BYTES) == numbers
    assert unpacked(packed(numbers), 5 * CHUNK_BYTES) == {number for number in numbers if number < 5}


@pytest.mark.parametrize(
    ("mesh", "rank", "at_most", "expected"),
    [
        ("pp=2,dp=2,tp=2", 5, 8, (5, 7)),
        ("dp=4", 2, 8, (0, 1, 2, 3)),
        ("dp=9", 4, 8, (0, 1, 2, 3, 4)),
        ("dp=9", 5, 8, (5, 6, 7, 8)),
        ("dp_replicate=2,dp_shard=4", 6, 8, (2, 6)),
        ("pp=4", 3, 8, (3,)),
        ("dp=2,pp=2,data=2", 2, 8, (2, 3, 6, 7)),
        ("dp=4", 2, 1, (2,)),
    ],
)
def test_replicas_differ_in_data_parallel_dimensions_only(
    mesh: str, rank: int, at_most: int, expected: tuple[int, ...]
) -> None:
    assert replicas_of(Mesh.parse(mesh), rank, at_most) == expected


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.integers(1, 9))
def test_replicas_agree_on_who_they_are(pp: int, dp: int, tp: int, at_most: int) -> None:
    mesh = Mesh(("pp", "dp", "tp"), (pp, dp, tp))
    for rank in range(mesh.world_size):
        alike = replicas_of(mesh, rank, at_most)
        assert rank in alike
        assert len(alike) <= at_most
        assert {replicas_of(mesh, other, at_most) for other in alike} == {alike}
        assert set(alike) <= set(mesh.group_of(rank, "dp"))


def test_replicas_themselves_are_asked_before_those_who_keep_their_copies() -> None:
    def vault(node: str) -> VaultAddress:
        return VaultAddress(node=node, host="h", port=1)

    order = BackupOrder(
        node="a",
        job="job",
        submitted_ms=1,
        world_size=8,
        generation=1,
        node_rank=0,
        nproc_per_node=2,
        alike=((0, 4), (1, 5)),
        replicas=(
            Replica(node_rank=0, vault=vault("a"), others=(vault("c"),)),
            Replica(node_rank=2, vault=vault("b"), others=(vault("d"), vault("c"))),
            Replica(node_rank=3, vault=vault("elsewhere")),
        ),
    )
    assert [each.node for each in holders_of(Assignment(order, ""), 1)] == ["b", "c", "d"]


def test_chunks_that_are_absent_take_no_memory() -> None:
    whole, part = Segment("whole", 5 * CHUNK_BYTES - 9), Segment("part", 5 * CHUNK_BYTES - 9, frozenset({0, 2, 4}))
    part.settle()
    taken = [os.fstat(each.descriptor).st_blocks * 512 for each in (whole, part)]
    assert taken == [5 * CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert part.nbytes_taken == 2 * CHUNK_BYTES
    assert part.memory.size == whole.memory.size


def kept(shelf: Shelf, step: int, absent: frozenset[int]) -> Segment:
    segment = shelf.claim(3, absent)
    assert shelf.seal(segment, contents(step))
    return segment


def contents(step: int) -> SealedContents:
    seal = Seal(nbytes=3, chunks=(step,), notes=())
    return SealedContents(sealed=SealedStep(generation=1, step=step), index=b"", objects=b"", seal=seal)


def test_what_is_whole_stays_when_a_part_of_the_same_comes() -> None:
    shelf = Shelf("a shelf")
    part = shelf.claim(3, frozenset({0}))
    kept(shelf, 1, frozenset())
    assert shelf.seal(part, contents(1))
    assert shelf.has_whole(SealedStep(generation=1, step=1))


def test_steps_that_are_wanted_stay_when_replicas_begin_to_differ() -> None:
    shelf = Shelf("a shelf", steps_wanted=8)
    for step in range(1, 11):
        kept(shelf, step, frozenset() if step == 10 else frozenset({0}))
    assert [sealed.step for sealed in shelf.steps()] == [10, 9, 8, 7, 6, 5, 4, 3, 2]
