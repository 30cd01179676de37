"""The part of Protocol Buffers' wire format that training logs need: numbered fields with raw values. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10


class MalformedMessage(ValueError):
    """The bytes are no valid message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field's number and value: unsigned int for a varint, else bytes. Raises MalformedMessage."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise MalformedMessage("field number 0")
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED_32, FIXED_64):
            size = 4 if kind == FIXED_32 else 8
        else:
            raise MalformedMessage(f"wire type {kind}")
        if size > end - at:
            raise MalformedMessage(f"field {number} of {size} bytes is cut short")
        yield number, message[at : at + size]
        at += size


def signed(value: int) -> int:
    """Convert a varint to int64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def as_double(value: int | bytes) -> float:
    """Return a field as double. Raises MalformedMessage unless it has eight bytes."""
    if not isinstance(value, bytes) or len(value) != 8:
        raise MalformedMessage("not a double")
    return float(struct.unpack("<d", value)[0])


def as_float(value: int | bytes) -> float:
    """Return a field as float. Raises MalformedMessage unless it has four bytes."""
    if not isinstance(value, bytes) or len(value) != 4:
        raise MalformedMessage("not a float")
    return float(struct.unpack("<f", value)[0])


def as_text(value: int | bytes) -> str:
    """Return a field as text; invalid UTF-8 is replaced. Raises MalformedMessage if it is a number."""
    return as_bytes(value).decode(errors="replace")


def as_bytes(value: int | bytes) -> bytes:
    """Return a field as bytes, for example of a nested message. Raises MalformedMessage if it is a number."""
    if not isinstance(value, bytes):
        raise MalformedMessage("a number where bytes belong")
    return value


def as_int(value: int | bytes) -> int:
    """Return a field as int64. Raises MalformedMessage if it is no varint."""
    if not isinstance(value, int):
        raise MalformedMessage("bytes where a number belongs")
    return signed(value)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(VARINT_BYTES_MAX):
        if at + place >= len(message):
            raise MalformedMessage("a number is cut short")
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise MalformedMessage(f"a number of more than {VARINT_BYTES_MAX} bytes")
