"""Chunks that two shards have in common: those with the same hash at the same place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.node.vault.seals import CHUNK_BYTES, chunk_hash
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelves import Shelves


def chunks_in_common(segment: Segment, contents: SealedContents, hashes: Sequence[int]) -> list[int]:
    """Return the chunks that are there and were sealed with these hashes, which begin at the first chunk."""
    pairs = enumerate(zip(contents.seal.chunks, hashes, strict=False))
    return [number for number, (here, there) in pairs if here == there and number not in segment.absent]


def has_chunk(segment: Segment, contents: SealedContents, number: int, expected: int, *, is_looked_at: bool) -> bool:
    """Return True if this chunk is there and was sealed with this hash; `is_looked_at`: and still has it."""
    sealed = contents.seal.chunks
    if number >= len(sealed) or sealed[number] != expected or number in segment.absent:
        return False
    return not is_looked_at or chunk_hash(segment.memory, number) == expected


def copy_from_shelves(
    shelves: Shelves,
    names: Iterable[ShardName],
    sealed: SealedStep,
    target: Segment,
    hashes: Sequence[int],
    numbers: Iterable[int],
) -> list[int]:
    """Copy these chunks from what this node has of these ranks at a step; those that it has not whole."""
    missing = list(numbers)
    for name in names:
        if not missing:
            break
        with shelves.of(name).holding(sealed) as held:
            if held is None:
                continue
            for number in list(missing):
                if held[0] is not target and has_chunk(*held, number, hashes[number], is_looked_at=True):
                    chunk = slice(number * CHUNK_BYTES, (number + 1) * CHUNK_BYTES)
                    target.put(number, held[0].memory[chunk].data)
                    missing.remove(number)
    return missing
