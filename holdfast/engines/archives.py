"""Compressed files (gzip, bzip2, xz), unpacked up to a size that memory can hold. Pure."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

GZIP = b"\x1f\x8b"
UNPACKED_BYTES_MAX = 8 << 30

_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKINGS: tuple[tuple[str, bytes, Callable[[], Any]], ...] = (
    ("gzip", GZIP, lambda: zlib.decompressobj(wbits=31)),
    ("bzip2", b"BZh", bz2.BZ2Decompressor),
    ("xz", b"\xfd7zXZ\x00", lzma.LZMADecompressor),
)


class DamagedArchive(ValueError):
    """A file that cannot be unpacked; the message gives reason and cure."""


def unpacked(data: bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """Return the unpacked content, of concatenated archives as well (`cat a.gz b.gz`); other data as it is. Raises
    DamagedArchive if it is broken, cut short, larger than `bytes_max`, or compressed in an unsupported way."""
    if data.startswith(_ZSTD):
        raise DamagedArchive("packed with zstd; unpack it with `zstd -d` first")
    packing = next((packing for packing in _PACKINGS if data.startswith(packing[1])), None)
    if packing is None:
        return data
    name, magic, new = packing
    found = bytearray()
    while data.startswith(magic):  # Other trailing data is ignored, as by `gzip -d`.
        part = new()
        try:
            found += part.decompress(data, bytes_max - len(found) + 1)
        except (zlib.error, OSError, lzma.LZMAError) as error:
            raise DamagedArchive(f"damaged {name} ({error}); copy it again") from error
        if len(found) > bytes_max:
            raise DamagedArchive(f"larger than {_size(bytes_max)} once unpacked; pass a smaller file")
        if not part.eof:
            raise DamagedArchive(f"the {name} data ends too early: it was cut short; copy it again")
        data = part.unused_data
    return bytes(found)


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >> 30 else f"{count} bytes"
