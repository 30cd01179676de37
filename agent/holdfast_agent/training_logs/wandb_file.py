"""Parser for Weights & Biases run files, `run-<id>.wandb`, offline or not. Pure.

The format is LevelDB's log: a header of 7 bytes, then blocks of 32 KiB with records: CRC-32 (zlib's) of type and data,
length u16, type u8 (whole, first, middle, last part), data; a block is padded with zeros. Each record is a protobuf
message `Record`, whose `history` holds what a script logs at a step. After damage parsing resumes at the next block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from math import isfinite
from typing import Any

import msgspec

from holdfast_agent.training_logs.protobuf import MalformedMessage, as_bytes, as_int, as_text, fields
from holdfast_agent.training_logs.scalars import Scalar

MAGIC = b":W&B"
FILE_HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
RECORD_BYTES_MAX = 1024 * 1024
"""Logged steps are small: larger records (configuration, artifacts) are skipped."""
NESTED_MAX = 8
DAMAGED_BLOCKS_MAX = 64
"""The file is given up after this many unreadable blocks in a row."""

_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Fields of Record, HistoryRecord, HistoryStep and HistoryItem.
_HISTORY = 2
_ITEM, _STEP = 1, 2
_STEP_NUMBER = 1
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
_NOT_JSON = {b"NaN": "nan", b"Infinity": "inf", b"-Infinity": "-inf"}


class WandbFile:
    """See `LogParser`."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.damaged = 0
        self.has_given_up = False
        self._at = offset
        """Position of the buffer's start; `offset` stays at the first part of an incomplete record."""
        self._buffer = bytearray()
        self._parts: bytearray | None = None
        self._damaged_blocks = 0

    def feed(self, data: bytes) -> list[Scalar]:
        self._buffer += data
        found: list[Scalar] = []
        while not self.has_given_up and self._take_part(found):
            continue
        if self.has_given_up:
            self._buffer.clear()
        return found

    def _take_part(self, found: list[Scalar]) -> bool:
        if self._at == 0:
            return self._take_file_header()
        left = BLOCK_BYTES - self._at % BLOCK_BYTES
        if left < _HEADER.size:
            return self._skip(left)
        if len(self._buffer) < _HEADER.size:
            return False
        crc, length, kind = _HEADER.unpack_from(self._buffer)
        if not (crc or length or kind):
            return self._skip(left)
        if _HEADER.size + length > left or not _WHOLE <= kind <= _LAST:
            return self._skip_damage(left)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return False
        if zlib.crc32(self._buffer[_HEADER.size - 1 : end]) != crc:
            return self._skip_damage(left)
        self._damaged_blocks = 0
        data = bytes(self._buffer[_HEADER.size : end])
        self._drop(end)
        self._join(kind, data, found)
        return True

    def _take_file_header(self) -> bool:
        if len(self._buffer) < FILE_HEADER_BYTES:
            return False
        if not self._buffer.startswith(MAGIC):
            self.damaged += 1
            self.has_given_up = True
            return False
        self._drop(FILE_HEADER_BYTES)
        self.offset = self._at
        return True

    def _join(self, kind: int, data: bytes, found: list[Scalar]) -> None:
        if kind in (_WHOLE, _FIRST):
            self._parts = bytearray()
        if self._parts is not None:
            self._parts += data
            if len(self._parts) > RECORD_BYTES_MAX:
                self._parts = None
        if kind in (_WHOLE, _LAST):
            if self._parts is not None:
                try:
                    found += _history(bytes(self._parts))
                except MalformedMessage:
                    self.damaged += 1
            self._parts = None
            self.offset = self._at

    def _skip_damage(self, size: int) -> bool:
        if len(self._buffer) < size:
            # The block may still be in the middle of a write: only a finished block is given up.
            return False
        self.damaged += not self._damaged_blocks
        self._damaged_blocks += 1
        self.has_given_up = self._damaged_blocks > DAMAGED_BLOCKS_MAX
        return self._skip(size)

    def _skip(self, size: int) -> bool:
        if len(self._buffer) < size:
            return False
        self._drop(size)
        if self._damaged_blocks:
            self._parts = None
        if self._parts is None:
            self.offset = self._at
        return True

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._at += size


def _history(record: bytes) -> list[Scalar]:
    """Return the scalars of one `Record`, which only a run's history has. Raises MalformedMessage."""
    found: list[Scalar] = []
    for number, value in fields(record):
        if number == _HISTORY:
            found += _step(as_bytes(value))
    return found


def _step(history: bytes) -> list[Scalar]:
    step, at_s = 0, 0.0
    numbers: list[tuple[str, float]] = []
    for number, value in fields(history):
        if number == _STEP:
            step = next((as_int(inner) for field, inner in fields(as_bytes(value)) if field == _STEP_NUMBER), step)
        elif number == _ITEM:
            for name, found in _item(as_bytes(value)):
                if name == "_step" and isfinite(found):
                    step = int(found)
                elif name == "_timestamp":
                    at_s = found
                elif not name.startswith("_"):
                    numbers.append((name, found))
    return [Scalar(name, step, at_s, number) for name, number in numbers]


def _item(message: bytes) -> Iterator[tuple[str, float]]:
    name, value = "", b""
    nested: list[str] = []
    for number, field in fields(message):
        if number == _KEY:
            name = as_text(field)
        elif number == _NESTED_KEY:
            nested.append(as_text(field))
        elif number == _VALUE_JSON:
            value = as_bytes(field)
    yield from _numbers(name or ".".join(nested), _parsed(value), NESTED_MAX)


def _parsed(value: bytes) -> Any:
    # NaN and infinities are written as Python or JavaScript spell them.
    if (word := _NOT_JSON.get(value.strip())) is not None:
        return float(word)
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def _numbers(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    """Return numbers by name, nested ones as `outer.inner` like W&B. Some writers put NaN into a string."""
    if isinstance(value, str):
        spelt = _NOT_JSON.get(value.encode(errors="replace"))
        value = None if spelt is None else float(spelt)
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        try:
            yield name, float(value)
        except OverflowError:
            return
    elif isinstance(value, dict) and depth:
        for inner, part in value.items():
            yield from _numbers(f"{name}.{inner}", part, depth - 1)
