"""Parser for TensorBoard's event files: TFRecords of the protobuf message `Event`. Pure.

Record: length u64, masked CRC-32C of these 8 bytes, message, masked CRC-32C of the message; little-endian. After a
corrupt length the next record must be searched for.
"""

from __future__ import annotations

import re
import struct

from holdfast_agent.training_logs.crc32c import masked_crc32c
from holdfast_agent.training_logs.protobuf import (
    MalformedMessage,
    as_bytes,
    as_double,
    as_float,
    as_int,
    as_text,
    fields,
)
from holdfast_agent.training_logs.scalars import Scalar

RECORD_BYTES_MAX = 64 * 1024
"""Scalars are small: larger records (images, histograms, graphs) are skipped unread."""
LENGTH_MAX = 1 << 31
"""No writer makes larger records: a larger length is damage."""
DAMAGED_BYTES_MAX = 256 * 1024
"""The file is given up after this many unreadable bytes in a row."""

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LIKE_A_LENGTH = re.compile(rb"(?:[^\0]..|.[^\0].|..[^\0])\0{5}", re.DOTALL)
"""The upper five bytes of a length are zeros, those of other fields are not."""

# Fields of Event, Summary.Value and TensorProto.
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_OF_ONE = {1: "<f", 2: "<d"}
"""Data types of losses, and their encoding in `tensor_content`."""


class TfEvents:
    """A parser that is fed the bytes of a growing file (`LogParser`). `offset`: bytes that need not be read again."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.damaged = 0
        self.has_given_up = False
        self._buffer = bytearray()
        self._passing = 0
        """Bytes of a large record that are yet to be skipped."""
        self._passed = 0
        """Bytes of that record that were skipped."""
        self._unreadable = 0
        """Bytes in a row that belong to no record."""

    def feed(self, data: bytes) -> list[Scalar]:
        self._buffer += data
        found: list[Scalar] = []
        while not self.has_given_up and (self._pass_over() if self._passing else self._take_record(found)):
            continue
        if self.has_given_up:
            self._buffer.clear()
        return found

    def _pass_over(self) -> bool:
        """Skip the rest of a large record."""
        step = min(self._passing, len(self._buffer))
        del self._buffer[:step]
        self._passing -= step
        self._passed += step
        if self._passing:
            return False
        # Only at its end: a parser that starts in the middle would take it for damage.
        self.offset += self._passed
        self._passed = 0
        return True

    def _take_record(self, found: list[Scalar]) -> bool:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return False
        length, crc = _LENGTH.unpack_from(buffer)
        if length > LENGTH_MAX or masked_crc32c(bytes(buffer[:8])) != crc:
            return self._search()
        self._unreadable = 0
        whole = _LENGTH.size + length + _CRC.size
        if length > RECORD_BYTES_MAX:
            self._passing = whole
            return True
        if len(buffer) < whole:
            return False
        message = bytes(buffer[_LENGTH.size : whole - _CRC.size])
        if masked_crc32c(message) == _CRC.unpack_from(buffer, whole - _CRC.size)[0]:
            try:
                found += _scalars(message)
            except MalformedMessage:
                self.damaged += 1
        else:
            self.damaged += 1
        self._drop(whole)
        return True

    def _search(self) -> bool:
        """Search for a possible start of a record."""
        if not self._unreadable:
            self.damaged += 1
        length = _LIKE_A_LENGTH.search(self._buffer, 1)
        step = length.start() if length else max(1, len(self._buffer) - 7)
        # Else the buffer could not be trimmed.
        del length
        self._drop(step)
        self._unreadable += step
        self.has_given_up = self._unreadable > DAMAGED_BYTES_MAX
        return len(self._buffer) >= _LENGTH.size

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self.offset += size


def _scalars(message: bytes) -> list[Scalar]:
    """Return the scalars of one `Event`. Raises MalformedMessage."""
    at_s, step = 0.0, 0
    values: list[tuple[str, float]] = []
    for number, value in fields(message):
        if number == _WALL_TIME:
            at_s = as_double(value)
        elif number == _STEP:
            step = as_int(value)
        elif number == _SUMMARY:
            for inner, part in fields(as_bytes(value)):
                if inner == _VALUE and (read := _value(as_bytes(part))) is not None:
                    values.append(read)
    return [Scalar(tag, step, at_s, value) for tag, value in values]


def _value(message: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for field, value in fields(message):
        if field == _TAG:
            tag = as_text(value)
        elif field == _SIMPLE_VALUE:
            number = as_float(value)
        elif field == _TENSOR:
            number = _tensor(as_bytes(value))
    return None if number is None or not tag else (tag, number)


def _tensor(message: bytes) -> float | None:
    """Return the number of a one-element tensor, as TensorFlow 2 and `add_scalar(new_style=True)` write scalars."""
    dtype, content = 0, b""
    listed: dict[int, bytes] = {_FLOATS: b"", _DOUBLES: b""}
    for field, value in fields(message):
        if field == _DTYPE:
            dtype = as_int(value)
        elif field == _CONTENT:
            content = as_bytes(value)
        elif field in listed:
            listed[field] += as_bytes(value)
    layout = _OF_ONE.get(dtype)
    raw = content or (listed[_FLOATS] if dtype == 1 else listed[_DOUBLES])
    if layout is None or len(raw) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, raw)[0])
