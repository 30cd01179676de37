"""Files that came packed, broken ones and ones that would fill the memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable

import pytest

from holdfast.engines.archives import DamagedArchive, unpacked


def test_gzip_in_several_parts_and_what_is_not_packed() -> None:
    assert unpacked(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    assert unpacked(b"plain") == b"plain"


@pytest.mark.parametrize("trailing", [b"\n", bytes(512), b"not packed", b"\x1f"])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_trailing_data_that_is_not_packed_is_ignored(pack: Callable[[bytes], bytes], trailing: bytes) -> None:
    assert unpacked(pack(b"one ") + pack(b"two") + trailing) == b"one two"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(bytes(3000))[:-9], "the gzip data ends too early"),
        (gzip.compress(bytes(range(256)))[:100] + b"\xff" * 200, "damaged gzip"),
        (gzip.compress(b"good") + gzip.compress(bytes(range(256)))[:100] + b"\xff" * 200, "damaged gzip"),
        (gzip.compress(b"good") + gzip.compress(bytes(3000))[:-9], "the gzip data ends too early"),
        (gzip.compress(bytes(10_001)), "larger than 10000 bytes"),
        (gzip.compress(bytes(10_000)) + gzip.compress(b"x"), "larger than 10000 bytes"),
    ],
    ids=["cut short", "damaged", "second damaged", "second cut short", "too large", "too large together"],
)
def test_what_cannot_be_unpacked_says_why(data: bytes, says: str) -> None:
    with pytest.raises(DamagedArchive, match=says):
        unpacked(data, 10_000)
