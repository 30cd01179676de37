"""From the rings of a node's ranks: iterations as they come, and what is sent of each rank when it is asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.engines.slow.sent_profiles import group_times, iterations_by_steps, kind_of, works
from holdfast.events.parts.samples import RankProfile
from holdfast.node.collectives.ring_layout import RECORD, RING_OFFSET
from holdfast.node.collectives.ring_reader import RingReader
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import StepRecord
from holdfast.topology import Mesh
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast_agent.slow_tests.rings import IterationBook, profile

ALL_REDUCE, BROADCAST = 1, 12
MS = 1_000_000


class Rank:
    """A rank by the clock of the test: it reduces, broadcasts and reduces in each iteration, and waits in the first."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.ledger = folder / f"rank-{rank}.ledger"
        self.rank = rank
        self.writer = RingWriter(folder / f"rank-{rank}.collectives", rank=rank, generation=1)
        self.group = self.writer.add_group("1", "mesh_dp", (0, 1))
        LedgerWriter(self.ledger, rank=rank, generation=1).complete_step(41)
        self.now_ns = 1_000 * MS
        self.sequence = 0

    def train(self, iterations: int, work_ms: int, wait_ms: int) -> None:
        for _ in range(iterations):
            self.now_ns += work_ms * MS
            for operation, size, took_ns in ((ALL_REDUCE, 4096, wait_ms * MS), (BROADCAST, 8, MS), (ALL_REDUCE, 4, MS)):
                self.sequence += 1
                index = self.writer.enter(self.group, self.sequence, operation, size, -1, 0)
                self.writer.leave(index, self.group, self.sequence, 0)
                # By the test's clock.
                with self.writer.path.open("r+b") as file:
                    at = RING_OFFSET + index * RECORD.size
                    file.seek(at)
                    fields = list(RECORD.unpack(file.read(RECORD.size)))
                    fields[1:4] = self.now_ns, self.now_ns, self.now_ns + took_ns
                    file.seek(at)
                    file.write(RECORD.pack(*fields))
                self.now_ns += took_ns

    def told(self, last: int) -> RankProfile:
        """As it arrives."""
        said = msgspec.json.encode(profile(self.rank, self.ledger, last))
        return msgspec.json.decode(said, type=RankProfile)


def _step(number: int, ended_ns: int) -> StepRecord:
    return StepRecord(step=number, ended_ns=ended_ns, duration_ns=100 * MS, loss=None, grad_norm=None, tokens=None)


def test_iterations_come_as_the_rank_makes_them(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0)
    book = IterationBook(0, rank.ledger)
    rank.train(30, work_ms=80, wait_ms=18)
    first = book.new_iterations()
    assert len(first) > 20
    assert book.new_iterations() == []
    rank.train(5, work_ms=180, wait_ms=18)
    later = book.new_iterations()
    assert [sample.duration_s for sample in later][-4:] == pytest.approx([0.2] * 4)
    assert later[-1].in_calls_s == pytest.approx(0.02)
    assert later[-1].iteration == first[-1].iteration + len(later)
    book.close()


def test_what_is_slow_is_told_apart_from_what_waits_for_it_and_from_what_was_before(tmp_path: Path) -> None:
    slow, waits = Rank(tmp_path, 0), Rank(tmp_path, 1)
    for rank in (slow, waits):
        rank.train(30, work_ms=80, wait_ms=18)
    slow.train(6, work_ms=180, wait_ms=18)
    waits.train(6, work_ms=80, wait_ms=118)
    profiles = [slow.told(5), waits.told(5)]
    assert [one.step for one in profiles] == [41, 41]
    assert profiles[0].iterations_s == pytest.approx([0.2] * 5)
    assert profiles[0].healthy_s == pytest.approx(0.1)
    by_rank = {work.rank: work for work in works(profiles)}
    assert by_rank[0].work_s == pytest.approx([0.18] * 5)
    assert by_rank[1].work_s == pytest.approx([0.08] * 5)
    assert by_rank[0].healthy_s == by_rank[1].healthy_s == pytest.approx(0.08)
    times = {(group.operation, group.bytes): group for group in group_times(profiles, Mesh.parse("dp=2"))}
    assert set(times) == {("all_reduce", 4096), ("broadcast", 8), ("all_reduce", 4)}
    longest = times["all_reduce", 4096]
    assert (longest.kind, longest.ranks) == ("dp", (0, 1))
    assert longest.transfer_s == pytest.approx(0.018)
    assert longest.healthy_s == pytest.approx(0.018)
    assert longest.waiting_s == pytest.approx((0.0, 0.1))


def test_steps_of_the_ledger_are_iterations_where_there_are_some(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0)
    rank.train(10, work_ms=80, wait_ms=18)
    records, _ = RingReader(rank.writer.path).records()
    start_ns = records[0].entered_ns - 80 * MS
    # The optimizer steps 10 ms behind the last collective; so the third step ends there, after three times 100 ms.
    steps = [_step(number, start_ns + (number + 1) * 100 * MS + 10 * MS) for number in range(9)]
    told = iterations_by_steps(0, steps, records)
    # The first is left out, and what was called in it.
    assert [one.ended_ns for one in told] == [step.ended_ns for step in steps[1:]]
    assert [one.duration_s for one in told] == pytest.approx([0.1] * 8)
    assert [one.in_calls_s for one in told] == pytest.approx([0.02] * 8)
    assert iterations_by_steps(0, steps, []) != []
    assert iterations_by_steps(0, [], records) == []


def test_a_group_of_which_a_rank_does_not_tell_is_left_out(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0)
    rank.train(30, work_ms=80, wait_ms=18)
    assert group_times([rank.told(5)]) == []


def test_a_rank_without_a_ring_says_why(tmp_path: Path) -> None:
    told = profile(3, tmp_path / "rank-3.ledger", 5)
    assert told.iterations_s == ()
    assert "rank-3.collectives" in told.unread
    (tmp_path / "rank-4.collectives").write_bytes(b"nothing of the kind")
    assert "is no ring" in profile(4, tmp_path / "rank-4.ledger", 5).unread
    book = IterationBook(4, tmp_path / "rank-4.ledger")
    assert (book.new_iterations(), book.new_iterations()) == ([], [])


@pytest.mark.parametrize(
    ("ranks", "kind"), [((0, 1), "tp"), ((0, 2), "dp"), ((0, 1, 2, 3), ""), ((0, 4), ""), ((), "")]
)
def test_groups_are_known_by_the_mesh(ranks: tuple[int, ...], kind: str) -> None:
    assert kind_of(ranks, Mesh.parse("dp=2,tp=2")) == kind


def test_a_reader_of_the_ring_gives_the_same_records_again(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0)
    rank.train(2, work_ms=10, wait_ms=5)
    reader = RingReader(rank.writer.path)
    assert reader.records() == reader.records()


def test_a_ring_that_cannot_be_opened_now_is_read_later(tmp_path: Path) -> None:
    (tmp_path / "rank-0.collectives").mkdir()
    book = IterationBook(0, tmp_path / "rank-0.ledger")
    assert book.new_iterations() == []
    (tmp_path / "rank-0.collectives").rmdir()
    Rank(tmp_path, 0).train(40, 10, 1)
    assert book.new_iterations()
    book.close()
