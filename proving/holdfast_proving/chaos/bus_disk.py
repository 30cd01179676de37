"""The disk of the simulated bus, which may lose what was written last.

A server acknowledges a message and writes it through seconds later. A power loss in between takes it back: the streams
go on from earlier positions, and keys have earlier values (docs/adr/0029-bus-went-back.md).
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from holdfast.bus import StreamPosition

_STREAMS = {"evidence": "EVIDENCE", "metric": "METRICS"}


class _Entry(msgspec.Struct, frozen=True):
    at_s: float
    id: str


class _Put(msgspec.Struct, frozen=True):
    at_s: float
    key: str
    before: bytes | None


class BusDisk:
    """Streams of message ids, and the puts of keys."""

    def __init__(self) -> None:
        self._streams: dict[str, list[_Entry]] = defaultdict(list)
        self._positions: dict[str, StreamPosition] = {}
        self._puts: list[_Put] = []

    def store(self, subject: str, id: str, at_s: float) -> StreamPosition:
        """Store a message at the end of its stream; one that is there keeps its position."""
        if id not in self._positions:
            name = _STREAMS.get(subject.split(".")[2], "DECISIONS")
            self._streams[name].append(_Entry(at_s, id))
            self._positions[id] = StreamPosition(name, len(self._streams[name]))
        return self._positions[id]

    def __contains__(self, id: str) -> bool:
        return id in self._positions

    def note_put(self, key: str, before: bytes | None, at_s: float) -> StreamPosition:
        """Remember the value that a key had before. Its position is of no use: orders are compared, not counted."""
        self._puts.append(_Put(at_s, key, before))
        return StreamPosition("KV_desired", len(self._puts))

    def holds(self, id: str, position: StreamPosition) -> bool:
        """Return True if this message is still at this position."""
        stream = self._streams[position.stream]
        return position.sequence <= len(stream) and stream[position.sequence - 1].id == id

    def lose_since(self, at_s: float) -> tuple[list[str], dict[str, bytes | None]]:
        """Lose what was written since then; return the ids of the messages, and the keys with their earlier values."""
        lost: list[str] = []
        for stream in self._streams.values():
            while stream and stream[-1].at_s >= at_s:
                lost.append(stream.pop().id)
        keys: dict[str, bytes | None] = {}
        while self._puts and self._puts[-1].at_s >= at_s:
            put = self._puts.pop()
            keys[put.key] = put.before
        for id in lost:
            del self._positions[id]
        return lost, keys
