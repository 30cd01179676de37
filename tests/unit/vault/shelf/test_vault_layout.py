"""Which blocks of a rank's memory are parts of which chunks of its shard."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.vault.seals import CHUNK_BYTES
from holdfast_vault.shelf.held_process import Piece
from holdfast_vault.shelf.memory_snapshot import BLOCK_BYTES, CopyLayout, layout_problem

places = st.lists(st.tuples(st.integers(1, 3 * CHUNK_BYTES), st.integers(0, BLOCK_BYTES)), min_size=1, max_size=6)


@given(places, st.randoms(use_true_random=False))
def test_every_byte_of_a_chunk_is_in_one_of_the_blocks_that_it_waits_for(
    sizes_and_gaps: list[tuple[int, int]], random: Random
) -> None:
    address, offset, spans = 1 << 40, 0, []
    for nbytes, gap in sizes_and_gaps:
        spans.append((address + gap, nbytes))
        address += gap + nbytes
    random.shuffle(spans)
    pieces = []
    for start, nbytes in spans:
        pieces.append(Piece(start, nbytes, offset))
        offset += nbytes
    layout = CopyLayout(pieces, [(1 << 40, address - (1 << 40))])
    parts: dict[int, int] = {}
    for block, chunks in zip(layout.blocks, layout.chunks, strict=True):
        touched = set()
        for piece in block:
            assert layout.index_of[piece.address // BLOCK_BYTES] == layout.blocks.index(block)
            first, last = piece.offset // CHUNK_BYTES, (piece.offset + piece.nbytes - 1) // CHUNK_BYTES
            touched |= {first, last}
            for chunk in range(first, last + 1):
                parts[chunk] = parts.get(chunk, 0) + (
                    min(piece.offset + piece.nbytes, (chunk + 1) * CHUNK_BYTES) - max(piece.offset, chunk * CHUNK_BYTES)
                )
        assert chunks == touched
    whole = [min(CHUNK_BYTES, offset - at) for at in range(0, offset, CHUNK_BYTES)]
    assert [parts[chunk] for chunk in range(len(whole))] == whole
    assert sum(layout.blocks_of_chunk.values()) == sum(len(chunks) for chunks in layout.chunks)
    # A chunk's parts are copied soon after each other.
    begins = [min(piece.offset for piece in block) for block in layout.blocks]
    assert begins == sorted(begins)


@pytest.mark.parametrize(
    "piece",
    [(1 << 40, 4096, 4097), (1 << 40, 4096, -1), (1 << 40, -4096, 4096), (-1, 1, 0), ((1 << 63) - 1, 1, 0)],
)
def test_a_piece_outside_of_the_state_is_a_problem(piece: tuple[int, int, int]) -> None:
    assert layout_problem(8192, [(1 << 40, 8192, 0), (1 << 40, 0, 8192)]) == ""
    assert layout_problem(8192, [(1 << 40, 8192, 0), piece])
    assert layout_problem(-1, []) and layout_problem(1 << 60, [])
