"""Training is held inside a rank at the end of a step, and goes on: by word, or by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401 - a rank has imported it; here it would take as long as the test waits

from holdfast import trainer
from holdfast.node.collectives.hold import Hold
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.trainer.hooks import holding
from holdfast.trainer.hooks.holding import wait_if_held
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import bind, binding

SOON_S = 10.0


class Rank:
    """This process as a rank; its training is a thread."""

    def __init__(self, folder: Path) -> None:
        self.ring = RingWriter(folder / "rank-0.collectives", rank=0, generation=1)
        self.ledger = LedgerWriter(folder / "rank-0.ledger", rank=0, generation=1)
        self.reader = LedgerReader(self.ledger.path)
        self.steps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._train)
        bind(self.ledger, self.ring)
        self._thread.start()

    def _train(self) -> None:
        while not self._stop.is_set():
            trainer.step(self.steps)
            self.steps += 1
            self._stop.wait(0.001)

    def until(self, condition: Callable[[], object]) -> None:
        give_up = time.monotonic() + SOON_S
        while not condition():
            assert time.monotonic() < give_up
            time.sleep(0.001)

    def until_step(self, step: int) -> None:
        self.until(lambda: self.steps > step)

    hold: Hold

    def end(self) -> None:
        self._stop.set()
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    made.hold = Hold(made.ring.path)
    yield made
    made.hold.end()
    made.end()
    binding.ledger = binding.ring = None
    binding.explicit = False


def far() -> int:
    return time.monotonic_ns() + int(60e9)


def test_a_rank_stands_still_behind_the_step_and_goes_on_when_told(rank: Rank) -> None:
    after = rank.steps + 20
    rank.hold.begin(after, far())
    rank.until(lambda: rank.hold.is_held)
    snapshot = rank.reader.snapshot()
    assert snapshot.phase_name == "held"
    # The first end of a step that finds the word; which may come late.
    stands_at = snapshot.step
    assert stands_at >= after
    rank.hold.multiply(0.01)
    rank.until(lambda: rank.hold.product)
    assert rank.hold.product is not None
    assert 1e-6 < rank.hold.product.took_s < SOON_S
    assert 0.0 <= rank.hold.product.waited_s <= rank.hold.product.took_s
    assert (rank.hold.is_held, rank.reader.snapshot().step) == (True, stands_at)
    rank.hold.end()
    rank.until(lambda: not rank.hold.is_held)
    rank.until_step(stands_at + 5)
    assert rank.reader.snapshot().phase_name == "init"


def test_nobody_stands_before_it_is_time(rank: Rank) -> None:
    rank.hold.begin(1_000_000_000, far())
    before = rank.steps
    rank.until_step(before + 20)
    assert not rank.hold.is_held


def test_a_hold_ends_by_itself_and_does_not_begin_again(rank: Rank) -> None:
    rank.hold.begin(0, time.monotonic_ns() + int(0.05e9))
    before = rank.steps
    rank.until(lambda: rank.ring.hold_wanted == 0)
    rank.until_step(before + 20)
    assert not rank.hold.is_held
    # Another one is another one.
    rank.hold.close()
    rank.hold = Hold(rank.ring.path)
    rank.hold.begin(0, far())
    rank.until(lambda: rank.hold.is_held)
    assert rank.hold.product is None


def test_what_is_no_rank_is_not_held() -> None:
    assert binding.ring is None
    wait_if_held()


def test_a_device_that_is_full_costs_the_test_and_not_the_training(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def full(duration_ns: int) -> tuple[int, int]:
        asked.append(duration_ns)
        raise RuntimeError("out of memory: tried to allocate 64 MiB")

    monkeypatch.setattr(holding, "_product_ns", full)
    rank.hold.begin(rank.steps, far())
    rank.until(lambda: rank.hold.is_held)
    rank.hold.multiply(3600.0)
    rank.until(lambda: asked)
    assert asked[0] <= 60e9, "no longer than the hold lasts"
    rank.hold.end()
    rank.until_step(rank.steps + 5)
    assert rank.hold.product is None
