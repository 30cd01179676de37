"""Whatever numbers a rank writes into its ledger and its ring, its agent reads on and can send what it has read."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engines.hang.event_times import to_event_times
from holdfast.events.parts.samples import IterationSample, RankProfile, StepSample
from holdfast.events.parts.traces import RankTrace
from holdfast.node.collectives import ring_layout
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.ledger import ledger_layout
from holdfast_agent.slow_tests.rings import IterationBook, profile
from holdfast_agent.tracer.collectives import marks_of, trace_of
from holdfast_agent.tracer.parts import traces_in_parts
from holdfast_agent.watching.ledgers import LedgerBook

RANKS = range(8)
LOOKS = 40
EXTREMES = (0, 1, 2, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 63) - 1)


def sent(value: object, kind: Any) -> None:
    """Send what was read, as a part of an event; every receiver must be able to read it."""
    msgspec.json.decode(msgspec.json.encode(value), type=kind)


def integer(chance: random.Random, bits: int, *, signed: bool) -> int:
    value = chance.choice(EXTREMES) % (1 << bits - 1)
    return -value - 1 if signed and chance.random() < 0.4 else value


def fields(chance: random.Random, form: str) -> list[object]:
    """Values for a struct of this format: each as far from any true one as its type allows, now and then."""
    found: list[object] = []
    kinds = {"q": (64, True), "Q": (64, False), "i": (32, True), "I": (32, False), "H": (16, False), "B": (8, False)}
    number = ""
    for letter in form.lstrip("@<"):
        if letter.isdigit():
            number += letter
            continue
        if letter == "s":
            found.append(chance.randbytes(int(number)))
        elif letter == "d":
            found.append(chance.choice((0.0, -1.0, 1e308, float("inf"), float("nan"))))
        elif letter != "x":
            bits, signed = kinds[letter]
            found.append(integer(chance, bits, signed=signed))
        number = ""
    return found


def write_ledger(path: Path, chance: random.Random, rank: int) -> None:
    body = bytearray(ledger_layout.FILE_BYTES)
    for record, offsets in (
        (ledger_layout.STATE, ledger_layout.STATE_OFFSETS),
        (ledger_layout.COLLECTIVE, ledger_layout.COLLECTIVE_OFFSETS),
        (ledger_layout.START, ledger_layout.START_OFFSETS),
    ):
        inner = fields(chance, record.format)
        record.pack_into(body, offsets[1], 1, *inner[1:-1], 1)
    done = ledger_layout.STATE.unpack_from(body, ledger_layout.STATE_OFFSETS[1])[2]
    for index in range(done - ledger_layout.RING_STEPS, done):
        count = max(0, index + 1)
        inner = fields(chance, ledger_layout.STEP.format)
        place = ledger_layout.RING_OFFSET + index % ledger_layout.RING_STEPS * ledger_layout.STEP.size
        ledger_layout.STEP.pack_into(body, place, count, *inner[1:-1], count)
    numbers = [integer(chance, 64, signed=True) for _ in range(3)]
    ledger_layout.HEADER.pack_into(
        body, 0, ledger_layout.MAGIC, ledger_layout.VERSION, ledger_layout.FILE_BYTES, 1, rank, *numbers[:2]
    )
    path.write_bytes(body)


def write_ring(path: Path, chance: random.Random, rank: int, table: bytes = b"") -> None:
    body = bytearray(ring_layout.FILE_BYTES)
    pid, generation, created, offset = (integer(chance, 64, signed=True) for _ in range(4))
    head = (ring_layout.MAGIC, ring_layout.VERSION, ring_layout.FILE_BYTES, pid, rank, generation, created, offset)
    ring_layout.HEADER.pack_into(body, 0, *head)
    table = table or group_table(((integer(chance, 21, signed=False), 2, integer(chance, 21, signed=True)),))
    body[ring_layout.TABLE_OFFSET : ring_layout.TABLE_OFFSET + len(table)] = table
    begun = chance.choice((64, ring_layout.RING_RECORDS, 1 << 40, (1 << 63) - 2))
    ring_layout.WORDS.pack_into(body, ring_layout.STATE_OFFSET, begun, len(table), 0)
    ring_layout.COUNTERS.pack_into(body, ring_layout.COUNTERS_OFFSET, *fields(chance, ring_layout.COUNTERS.format))
    for index in range(begun - 64, begun):
        inner = fields(chance, ring_layout.RECORD.format)
        place = ring_layout.RING_OFFSET + index % ring_layout.RING_RECORDS * ring_layout.RECORD.size
        inner[7] = chance.choice((0, 1, ring_layout.GROUP_UNKNOWN))
        ring_layout.RECORD.pack_into(body, place, index + 1, *inner[1:-1], index + 1)
    path.write_bytes(body)


def group_table(*groups: tuple[ring_layout.Run, ...]) -> bytes:
    entries = [msgspec.msgpack.encode(["group", "", runs]) for runs in groups]
    return b"".join(ring_layout.TABLE_LENGTH.pack(len(entry)) + entry for entry in entries)


@pytest.mark.parametrize(
    "table",
    [
        group_table(((0, 1 << 50, 1), (0, -(1 << 50), 1))),
        group_table(((0, 2, 1 << 62),)),
        group_table(*[((0, 1_000_000, 1),)] * 100),
        group_table(*[((0, 1, 1),)] * (ring_layout.GROUPS_MAX + 1)),
    ],
    ids=["a negative run", "ranks far apart", "members of all groups", "groups"],
)
def test_a_ring_with_more_members_than_memory_has_room_for_is_damaged(tmp_path: Path, table: bytes) -> None:
    write_ring(ring_path(tmp_path / "ledger"), random.Random(7), 0, table)
    assert "damaged" in trace_of(tmp_path / "ledger", 0, "node", 1).unread


def test_of_ledgers(tmp_path: Path) -> None:
    chance = random.Random(7)
    for look in range(LOOKS):
        paths = {rank: tmp_path / f"{look}-{rank}" for rank in RANKS}
        for rank, path in paths.items():
            write_ledger(path, chance, rank)
        book = LedgerBook(paths)
        msgspec.json.encode(book.statuses())
        samples, missed = book.new_samples()
        for rank, path in paths.items():
            write_ledger(path, chance, rank)
        book.close()
        again = LedgerBook(paths, book.steps_read())
        more, further = again.new_samples()
        # The watcher sums them before it sends them.
        sent((*samples, *more), tuple[StepSample, ...])
        sent((missed + further, sum(again.steps_read().values())), tuple[int, int])
        again.close()


def test_of_rings(tmp_path: Path) -> None:
    chance = random.Random(7)
    for look in range(LOOKS):
        ledger = tmp_path / f"{look}-ledger"
        write_ledger(ledger, chance, look)
        write_ring(ring_path(ledger), chance, look)
        book = IterationBook(look, ledger)
        sent([*book.new_iterations(), *book.new_iterations()], list[IterationSample])
        book.close()
        sent(profile(look, ledger, 8), RankProfile)
        msgspec.json.encode(marks_of(ledger))
        trace: RankTrace = trace_of(ledger, look, "node", int(datetime.now(UTC).timestamp() * 1e9))
        origin, traces = to_event_times([trace])
        sent((origin, traces_in_parts(traces)), tuple[datetime, list[tuple[RankTrace, ...]]])
