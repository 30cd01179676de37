"""Files that came packed, broken ones and ones that would fill the memory."""

from __future__ import annotations

import gzip

import pytest

from holdfast.engines.archives import DamagedArchive, unpacked


def test_gzip_in_several_parts_and_what_is_not_packed() -> None:
    assert unpacked(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    assert unpacked(b"plain") == b"plain"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(bytes(3000))[:-9], "cut short"),
        (gzip.compress(bytes(range(256)))[:100] + b"\xff" * 200, "damaged gzip"),
        (gzip.compress(bytes(10_001)), "larger than 10000 bytes"),
        (gzip.compress(bytes(10_000)) + gzip.compress(b"x"), "larger than 10000 bytes"),
    ],
    ids=["cut short", "damaged", "too large", "too large together"],
)
def test_what_cannot_be_unpacked_says_why(data: bytes, says: str) -> None:
    with pytest.raises(DamagedArchive, match=says):
        unpacked(data, 10_000)
