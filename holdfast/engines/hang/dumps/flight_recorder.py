"""Reader for Flight Recorder dumps as files hold them: pickle or JSON, gzip or not, one rank or many. Pure.

A pickle is read as data (`safe_pickle`). `flight_dump` interprets the fields and types of dump versions 2.0 to 2.10.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.engines.archives import DamagedArchive, unpacked
from holdfast.engines.hang.dumps import safe_pickle
from holdfast.engines.hang.dumps.flight_dump import trace_of
from holdfast.engines.hang.dumps.flight_record import FlightDump
from holdfast.events.parts.traces import RankTrace

BYTES_MAX: Final = 2 << 30
"""Size limit of an unpacked dump."""

_RANK_IN_NAME: Final = re.compile(r"rank[_\-.]?(\d+)(?!.*rank[_\-.]?\d)", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"(\d+)(?:\.(?:pickle|pkl|pt|json|bin|trace|dump|gz))*$", re.IGNORECASE)


class FlightRecorderError(ValueError):
    """Not a flight recorder's dump, or a broken one. The message names the cause and the place."""


def read_flight_recorder(data: bytes, name: str = "") -> list[RankTrace]:
    """Read the ranks of one file. Raises FlightRecorderError if it is broken or no dump, or if a rank is unknown.

    A file holds one rank's dump, or an object rank -> dump, or that object under `dumps`. The rank of a single dump is
    that of its field `rank`, of `name` (`..._rank_7`), of the groups that it belongs to, or the last number in `name`.
    """
    data = _unpacked(data)
    try:
        found = _from_json(data, name) if data[:1] in (b"{", b"[") else _from_pickle(data, name)
    except FlightRecorderError:
        raise
    except (ValueError, RecursionError) as error:
        raise FlightRecorderError(f"{name or 'the dump'} cannot be read as a flight recorder's dump: {error}") from None
    return sorted(found, key=lambda trace: trace.rank)


class FlightDumpFile(FlightDump, frozen=True):
    """A file with one dump or several."""

    dumps: dict[str, FlightDump] = msgspec.field(default_factory=dict)


def _unpacked(data: bytes) -> bytes:
    try:
        data = unpacked(data, BYTES_MAX)
    except DamagedArchive as error:
        raise FlightRecorderError(f"the dump is {error}") from None
    if data[:1].isspace():
        data = data.lstrip()
    if not data:
        raise FlightRecorderError("the dump is empty: the rank ended before it was written, or the disk is full")
    return data


def _from_json(data: bytes, name: str) -> list[RankTrace]:
    if data[:1] == b"[":
        return [_one(_dump(each), "") for each in msgspec.json.decode(data, type=list[msgspec.Raw])]
    file = _FILE.decode(data)
    if file.dumps:
        return [_of_rank(rank, dump) for rank, dump in file.dumps.items()]
    if file.entries or file.pg_config or file.pg_status:
        return [_one(file, name)]
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if parts.keys() & {"entries", "pg_config", "pg_status"}:
        return [_one(file, name)]
    return [_of_rank(rank, _dump(each)) for rank, each in parts.items()]


def _from_pickle(data: bytes, name: str) -> list[RankTrace]:
    value = safe_pickle.loads(data)
    if not isinstance(value, dict):
        raise FlightRecorderError(f"the pickle holds a {type(value).__name__}; a flight recorder's dump is a dict")
    if "entries" in value or "pg_config" in value or "pg_status" in value:
        return [_one(_converted(value), name)]
    parts = value.get("dumps", value)
    if not isinstance(parts, dict):
        raise FlightRecorderError("`dumps` is no dict rank -> dump")
    return [_of_rank(str(rank), _converted(each)) for rank, each in parts.items()]


def _dump(raw: msgspec.Raw) -> FlightDump:
    return _DECODER.decode(raw)


_DECODER: Final = msgspec.json.Decoder(FlightDump, strict=False)
_FILE: Final = msgspec.json.Decoder(FlightDumpFile, strict=False)


def _converted(value: object) -> FlightDump:
    return msgspec.convert(value, FlightDump, strict=False)


def _of_rank(rank: str, dump: FlightDump) -> RankTrace:
    match = re.fullmatch(r"(?:rank[_\-.]?)?(\d+)", rank.strip(), re.IGNORECASE)
    if match is None:
        raise FlightRecorderError(
            f"{rank!r} is no rank, and no field of a flight recorder's dump (those are `entries`, `pg_config`,"
            " `pg_status`); several dumps in one file are an object rank -> dump"
        )
    return trace_of(dump, int(match[1]))


def _one(dump: FlightDump, name: str) -> RankTrace:
    base = name.replace("\\", "/").rpartition("/")[2]
    if dump.rank is not None:
        return trace_of(dump, dump.rank)
    if match := _RANK_IN_NAME.search(base):
        return trace_of(dump, int(match[1]))
    member_of = [set(group.members()) for group in dump.pg_config.values()]
    common = set.intersection(*filter(None, member_of)) if any(member_of) else set()
    if len(common) == 1:
        return trace_of(dump, common.pop())
    if match := _LAST_NUMBER.search(base):
        return trace_of(dump, int(match[1]))
    raise FlightRecorderError(
        f"{name or 'the dump'} does not state its rank; name the file after it, such as trace_rank_7, or put"
        " the dumps of all ranks into one object rank -> dump"
    )
