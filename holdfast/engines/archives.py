"""Compressed files (gzip, bzip2, xz), unpacked up to a size that memory can hold. Pure."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

GZIP = b"\x1f\x8b"
UNPACKED_BYTES_MAX = 8 << 30

_ZSTD = b"\x28\xb5\x2f\xfd"


class DamagedArchive(ValueError):
    """A file that cannot be unpacked; the message says why, and the cure."""


def unpacked(data: bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """Return the unpacked content, of concatenated archives as well (`cat a.gz b.gz`); other data as it is. Raises
    DamagedArchive if it is broken, cut short, larger than `bytes_max`, or compressed in an unsupported way."""
    if data.startswith(_ZSTD):
        raise DamagedArchive("packed with zstd; unpack it with `zstd -d` first")
    packing = _packing(data)
    if packing is None:
        return data
    name, new = packing
    found = bytearray()
    while data.strip(b"\x00"):
        part = new()
        try:
            found += part.decompress(data, bytes_max - len(found) + 1)
        except (zlib.error, OSError, lzma.LZMAError) as error:
            if found:
                # Trailing data that is not compressed is ignored, as by `gzip -d`.
                break
            raise DamagedArchive(f"damaged {name} ({error}); copy it again") from error
        if len(found) > bytes_max:
            raise DamagedArchive(f"larger than {_size(bytes_max)} once unpacked; give a part of it")
        if not part.eof:
            raise DamagedArchive(f"breaks off before its {name} ends: it was cut short; copy it again")
        data = part.unused_data
    return bytes(found)


def _packing(data: bytes) -> tuple[str, Any] | None:
    if data.startswith(GZIP):
        return "gzip", lambda: zlib.decompressobj(wbits=31)
    if data.startswith(b"BZh"):
        return "bzip2", bz2.BZ2Decompressor
    return ("xz", lzma.LZMADecompressor) if data.startswith(b"\xfd7zXZ\x00") else None


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >> 30 else f"{count} bytes"
