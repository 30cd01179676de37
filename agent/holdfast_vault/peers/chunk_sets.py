"""Sets of chunk numbers as they travel: one bit for each chunk of a shard, the first one lowest."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.node.vault.seals import chunks_of


def packed(numbers: Collection[int]) -> bytes:
    """Return the set as bits; no longer than its highest number needs."""
    bits = sum(1 << number for number in numbers)
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def unpacked(bits: bytes, nbytes: int) -> frozenset[int]:
    """Return the set, of the chunks that a shard of `nbytes` has; what else the bits name is left out."""
    return frozenset(
        number for number in range(min(8 * len(bits), chunks_of(nbytes))) if bits[number // 8] >> number % 8 & 1
    )
