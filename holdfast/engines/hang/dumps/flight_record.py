"""One rank's dump of PyTorch's Flight Recorder, field by field. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec


@lru_cache(maxsize=65_536)
def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.strip("[]() ").split(",") if number.strip())


_LARGE_BYTES: Final = 4096
_LARGE_KEPT: Final = 8
_large: list[tuple[str, tuple[int, ...]]] = []


def _members(text: str) -> tuple[int, ...]:
    """Parse a text like a list of numbers; equal texts give the same tuple."""
    if len(text) < _LARGE_BYTES:
        return _numbers(text)
    # The member list of a job occurs once per rank: 32,768 times 200 kB. Comparing is ten times as fast as hashing.
    for known, numbers in _large:
        if known == text:
            return numbers
    found = tuple(int(number) for number in text.strip("[]() ").split(",") if number.strip())
    _large.insert(0, (text, found))
    del _large[_LARGE_KEPT:]
    return found


class DumpedGroup(msgspec.Struct, frozen=True):
    """A process group; `ranks` is a list, or a text like one."""

    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""

    def members(self) -> tuple[int, ...]:
        """Return the global ranks; empty if the dump has none. Raises ValueError if the text is no list of numbers."""
        return _members(self.ranks) if isinstance(self.ranks, str) else tuple(self.ranks)


class DumpedStatus(msgspec.Struct, frozen=True):
    """Progress of a group on this rank: last sequence numbers, -1 for none yet."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class DumpedFrame(msgspec.Struct, frozen=True):
    name: str = ""
    filename: str = ""
    line: int = 0


class FlightRecord(msgspec.Struct, frozen=True):
    """One operation. Versions before 2.1 call `collective_seq_id` `seq_id`."""

    profiling_name: str
    pg_id: int | str = -1
    process_group: list[str] = []
    collective_seq_id: int | None = None
    seq_id: int | None = None
    p2p_seq_id: int | None = None
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = "scheduled"
    time_created_ns: int | None = None
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    duration_ms: float | None = None
    retired: bool = False
    is_p2p: bool = False
    frames: list[DumpedFrame] = []

    @property
    def collectives(self) -> int | None:
        """Number of collectives that the group has counted."""
        return self.seq_id if self.collective_seq_id is None else self.collective_seq_id

    @property
    def sequence(self) -> int:
        return (self.p2p_seq_id if self.is_p2p else self.collectives) or 0


class FlightDump(msgspec.Struct, frozen=True):
    version: str | float = ""
    rank: int | None = None
    pg_config: dict[str, DumpedGroup] = {}
    pg_status: dict[str | int, DumpedStatus] = {}
    entries: list[FlightRecord] = []
