"""Files that came packed, broken ones and ones that would fill the memory."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest

from holdfast.unpacking import Damaged, unpacked, zipped


def as_zip(**files: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return found.getvalue()


def test_gzip_in_several_parts_and_what_is_not_packed() -> None:
    assert unpacked(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    assert unpacked(b"plain") == b"plain"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(bytes(3000))[:-9], "cut short"),
        (gzip.compress(bytes(range(256)))[:100] + b"\xff" * 200, "damaged gzip"),
        (gzip.compress(bytes(10_001)), "more than 10000 bytes"),
        (gzip.compress(bytes(10_000)) + gzip.compress(b"x"), "more than 10000 bytes"),
    ],
)
def test_what_cannot_be_unpacked_says_why(data: bytes, says: str) -> None:
    with pytest.raises(Damaged, match=says):
        unpacked(data, 10_000)


def test_the_files_in_a_zip() -> None:
    assert dict(zipped(as_zip(a=b"one", b=b"two"))) == {"a": b"one", "b": b"two"}
    with pytest.raises(Damaged, match="too large"):
        dict(zipped(as_zip(a=bytes(600), b=bytes(600)), 1000))
    with pytest.raises(Damaged, match="copy it again"):
        dict(zipped(as_zip(a=b"one" * 200)[:-40]))
