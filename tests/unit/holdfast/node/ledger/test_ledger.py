"""The ledger: what is written is read, whole or not at all."""

from __future__ import annotations

import math
import os
import signal
import struct
import sys
import threading
from pathlib import Path

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import FILE_BYTES, RING_STEPS, LedgerError, Phase, Source
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast_agent.watching.ledgers import LedgerBook


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-3.ledger"


def test_a_fresh_ledger_says_that_nothing_happened_yet(path: Path) -> None:
    writer = LedgerWriter(path, rank=3, generation=7)
    snapshot = LedgerReader(path).snapshot()
    assert (snapshot.pid, snapshot.rank, snapshot.generation) == (os.getpid(), 3, 7)
    assert (snapshot.step, snapshot.steps_done, snapshot.first_step_ns) == (-1, 0, 0)
    assert (snapshot.phase, snapshot.exit_code, snapshot.loss) == (Phase.INIT, None, None)
    assert path.stat().st_size == FILE_BYTES
    writer.close()


def test_steps_count_on_from_the_number_that_is_said(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    writer.complete_step(100, loss=2.5, grad_norm=0.5, tokens=4096)
    writer.complete_step(loss=math.nan)
    snapshot = reader.snapshot()
    assert (snapshot.step, snapshot.steps_done) == (101, 2)
    assert snapshot.loss is not None
    assert math.isnan(snapshot.loss)
    assert (snapshot.grad_norm, snapshot.tokens) == (None, None)
    steps, missed = reader.new_steps()
    assert [(step.step, step.grad_norm, step.tokens) for step in steps] == [(100, 0.5, 4096), (101, None, None)]
    assert steps[0].ended_ns == snapshot.first_step_ns
    assert steps[1].duration_ns >= 0
    assert (missed, reader.new_steps()) == (0, ([], 0))


def test_steps_that_were_overwritten_are_counted(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    for _ in range(10):
        writer.complete_step()
    reader.new_steps()
    for _ in range(RING_STEPS + 5):
        writer.complete_step()
    steps, missed = reader.new_steps()
    assert missed == 5
    assert [step.step for step in steps] == list(range(15, 10 + RING_STEPS + 5))


def test_phases_come_back_to_the_one_before(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    before = writer.enter_phase("forward")
    assert (before, reader.snapshot().phase) == ("init", Phase.FORWARD)
    writer.enter_phase("my own phase with quite a long name")
    snapshot = reader.snapshot()
    assert (snapshot.phase, snapshot.phase_name) == (Phase.OTHER, "my own phase with quite a lo")


def test_collectives_are_counted_and_one_inside_another_is_part_of_it(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    writer.enter_collective(b"all_gather_object")
    writer.enter_collective(b"all_gather")
    writer.leave_collective()
    inside = reader.snapshot().collective
    assert (inside.name, inside.entered, inside.in_flight) == ("all_gather_object", 1, 1)
    other = threading.Thread(target=writer.enter_collective, args=(b"all_reduce",))
    other.start()
    other.join()
    assert reader.snapshot().collective.in_flight == 2
    writer.leave_collective()
    left = reader.snapshot().collective
    assert (left.entered, left.in_flight) == (2, 1)
    assert left.left_ns >= left.entered_ns


def test_the_end_is_marked(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    writer.end(0)
    snapshot = reader.snapshot()
    assert (snapshot.exit_code, snapshot.phase) == (0, Phase.EXIT)


def test_a_rank_killed_in_the_middle_of_a_write_leaves_the_state_before(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=1), LedgerReader(path)
    for _ in range(3):
        writer.complete_step()
    data = bytearray(path.read_bytes())
    sequences = [struct.unpack_from("<Q", data, offset)[0] for offset in (64, 192)]
    newest = 64 if sequences[0] > sequences[1] else 192
    # The next write goes to the older slot; its first half is there.
    older = 256 - newest
    struct.pack_into("<Qq", data, older, max(sequences) + 1, 999)
    path.write_bytes(data)
    assert LedgerReader(path).snapshot().step == 2
    reader.close()


def test_a_reader_never_sees_a_mixture(path: Path) -> None:
    """A process that writes at full speed, read meanwhile: loss and tokens always belong to the step."""
    LedgerWriter(path, rank=0, generation=1).close()
    pid = os.fork()
    if pid == 0:
        writer = LedgerWriter(path, rank=0, generation=1)
        step = 0
        while True:
            writer.complete_step(step, loss=float(step), grad_norm=float(-step), tokens=step)
            step += 1
    try:
        reader = LedgerReader(path)
        while reader.snapshot().steps_done == 0:
            reader = LedgerReader(path)
        last = 0
        for _ in range(5_000):
            snapshot = reader.snapshot()
            assert snapshot.loss == snapshot.step == snapshot.tokens == snapshot.steps_done - 1
            assert snapshot.grad_norm == -snapshot.step
            assert snapshot.steps_done >= last
            last = snapshot.steps_done
            steps, _ = reader.new_steps()
            assert all(step.step == step.loss == step.tokens for step in steps)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no ledger"),
        (b"something else entirely, and long enough to hold a header of 48 bytes", "is no ledger"),
        (b"HFLEDGER" + struct.pack("<IIqqqq", 1, FILE_BYTES, 1, 0, 1, 0), "cut short: 48 of"),
        (b"HFLEDGER" + struct.pack("<IIqqqq", 9, FILE_BYTES, 1, 0, 1, 0), "version 9"),
    ],
)
def test_a_file_that_is_no_whole_ledger_is_named(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=message):
        LedgerReader(path)


def test_a_ledger_cut_short_while_read_raises_instead_of_ending_the_reader(path: Path) -> None:
    LedgerWriter(path, rank=0, generation=1).complete_step()
    reader = LedgerReader(path)
    os.truncate(path, 100)
    with pytest.raises(LedgerError, match="cut short"):
        reader.snapshot()


def test_the_ledger_does_not_import_torch() -> None:
    code = "import sys, holdfast.node.ledger.ledger_file, holdfast.trainer; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def test_what_json_cannot_carry_is_named(path: Path) -> None:
    writer, book = LedgerWriter(path, rank=3, generation=1), LedgerBook({3: path})
    writer.complete_step(1, loss=math.nan, grad_norm=-math.inf)
    writer.complete_step(2, loss=1.5)
    (bad, good), missed = book.new_samples()
    assert (bad.loss, bad.grad_norm, bad.not_finite) == (None, None, {"loss": "nan", "grad_norm": "-inf"})
    assert (good.loss, good.grad_norm, good.not_finite, missed) == (1.5, None, {}, 0)
    book.close()


def test_steps_that_are_not_numbered_are_counted_from_where_the_generation_went_on(path: Path) -> None:
    writer, reader = LedgerWriter(path, rank=0, generation=2), LedgerReader(path)
    writer.begin_steps(10, Source.RESTORED)
    writer.complete_step()
    # It is known only before the first one.
    writer.begin_steps(50, Source.RESTORED)
    writer.complete_step()
    assert [step.step for step in reader.new_steps()[0]] == [10, 11]
