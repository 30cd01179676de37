"""The few calls of libdcgm that read profiling fields, by ctypes, in the forms of dcgm_agent.h and dcgm_structs.h.

The library of DCGM 4 and of 3 has them alike. Only a host engine that runs is asked: none is started, for two of them
would compete for the GPU's counters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Final

LIBRARIES: Final = ("libdcgm.so.4", "libdcgm.so.3")
_OK: Final = 0
_ALL_GPUS: Final = 0x7FFFFFFF
_DEVICES_MAX: Final = 256
"""More than DCGM_MAX_NUM_DEVICES of any release: the library writes at most its own number."""

_STRING_MAX, _BLOB_MAX = 256, 4096
_INTEGER, _DOUBLE, _STRING = ord("i"), ord("d"), ord("s")

_INTEGER_BLANK: Final = 0x7FFFFFFFFFFFFFF0
_DOUBLE_BLANK: Final = 2.0**47
_STRING_BLANK: Final = "<<<"
"""From these values on there is no value: not found, not supported, not permitted."""


class _Value(ctypes.Union):
    _fields_ = [
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * _STRING_MAX),
        ("blob", ctypes.c_byte * _BLOB_MAX),
    ]


class FieldValue(ctypes.Structure):
    """`dcgmFieldValue_v1`; `ts` is in microseconds since 1970."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_ushort),
        ("status", ctypes.c_int),
        ("ts", ctypes.c_int64),
        ("value", _Value),
    ]


VERSION: Final = ctypes.sizeof(FieldValue) | 1 << 24


class DcgmError(Exception):
    """The library, or its host engine, refused a call; the message gives the call and its reason."""


class Dcgm:
    """A connection to the host engine at `address`, which watches `fields` of all GPUs. Raises DcgmError, OSError."""

    def __init__(self, address: str, fields: Sequence[int], every_s: float, keep_s: float, name: str) -> None:
        self._library = _load()
        self._fields = tuple(fields)
        self._handle = ctypes.c_size_t()
        self._check("dcgmInit")
        self._check("dcgmConnect", address.encode(), ctypes.byref(self._handle))
        group = ctypes.c_size_t()
        ids = (ctypes.c_ushort * len(fields))(*fields)
        self._check("dcgmFieldGroupCreate", self._handle, len(fields), ids, name.encode(), ctypes.byref(group))
        # The watch ends with the connection.
        self._check(
            "dcgmWatchFields",
            self._handle,
            ctypes.c_size_t(_ALL_GPUS),
            group,
            ctypes.c_longlong(int(every_s * 1e6)),
            ctypes.c_double(keep_s),
            ctypes.c_int(2),
        )

    def gpus(self) -> tuple[int, ...]:
        ids, count = (ctypes.c_uint * _DEVICES_MAX)(), ctypes.c_int()
        self._check("dcgmGetAllSupportedDevices", self._handle, ids, ctypes.byref(count))
        return tuple(ids[: count.value])

    def newest(self, gpu: int, since_us: int) -> Mapping[int, float | str]:
        """Return the newest values of a GPU by field, without those that are older or that it does not have."""
        ids = (ctypes.c_ushort * len(self._fields))(*self._fields)
        values = (FieldValue * len(self._fields))()
        for value in values:
            value.version = VERSION
        self._check(
            "dcgmGetLatestValuesForFields", self._handle, ctypes.c_int(gpu), ids, ctypes.c_uint(len(values)), values
        )
        found = {int(value.fieldId): _plain(value) for value in values if value.status == _OK and value.ts >= since_us}
        return {field: value for field, value in found.items() if value is not None}

    def _check(self, call: str, *arguments: object) -> None:
        try:
            code = getattr(self._library, call)(*arguments)
        except AttributeError as error:
            raise DcgmError(f"the library has no {call}") from error
        if code != _OK:
            raise DcgmError(f"{call} returned {code}{self._in_words(code)}")

    def _in_words(self, code: int) -> str:
        words = getattr(self._library, "errorString", None)
        if words is None:
            return ""
        words.restype = ctypes.c_char_p
        text = words(ctypes.c_int(code))
        return f": {text.decode(errors='replace')}" if text else ""


def _load() -> ctypes.CDLL:
    missing: OSError | None = None
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            missing = missing or error
    assert missing is not None
    raise missing


def _plain(value: FieldValue) -> float | str | None:
    if value.fieldType == _DOUBLE:
        return float(value.value.dbl) if 0 <= value.value.dbl < _DOUBLE_BLANK else None
    if value.fieldType == _INTEGER:
        return float(value.value.i64) if 0 <= value.value.i64 < _INTEGER_BLANK else None
    text = value.value.str.decode(errors="replace") if value.fieldType == _STRING else ""
    return text if text and not text.startswith(_STRING_BLANK) else None
