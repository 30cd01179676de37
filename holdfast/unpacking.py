"""Files that came packed: gzip and zip, up to a size that memory can hold. Pure."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator

GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
UNPACKED_BYTES_MAX = 8 << 30


class Damaged(ValueError):
    """It cannot be unpacked; the message says why, and the cure."""


def unpacked(data: bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """What a file holds, gzip in several parts or none.

    Raises:
        Damaged: it is broken, was cut short, or is larger than `bytes_max`.
    """
    if not data.startswith(GZIP):
        return data
    found = io.BytesIO()
    while data.startswith(GZIP):
        unpacking = zlib.decompressobj(wbits=31)
        try:
            found.write(unpacking.decompress(data, bytes_max - found.tell()))
        except zlib.error as error:
            raise Damaged(f"damaged gzip ({error}); copy it again") from error
        if unpacking.unconsumed_tail:
            raise Damaged(f"more than {_size(bytes_max)} unpacked; give a part of it")
        if not unpacking.eof:
            raise Damaged("breaks off before its gzip ends: it was cut short; copy it again")
        data = unpacking.unused_data
        if found.tell() >= bytes_max and data.startswith(GZIP):
            raise Damaged(f"more than {_size(bytes_max)} unpacked; give a part of it")
    return found.getvalue()


def zipped(data: bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> Iterator[tuple[str, bytes]]:
    """The files in a zip file, with their names.

    Raises:
        Damaged: it is broken, encrypted, or larger than `bytes_max`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                with archive.open(member) as file:
                    inside = file.read(bytes_max + 1)
                bytes_max -= len(inside)
                if bytes_max < 0:
                    raise Damaged("too large unpacked; give a part of it")
                yield member.filename, inside
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise Damaged(f"unreadable zip ({error}); unpack it yourself, or copy it again") from error


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >> 30 else f"{count} bytes"
