"""Numbers that a script prints with its steps, and those that begin again in each pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import Source
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.trainer.phases import bind, binding
from holdfast.trainer.steps.log_lines import LineNumbers


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    for name in ("ledger", "explicit", "is_begun", "is_start_known", "unsettled_ns", "framework", "start", "ring"):
        monkeypatch.setattr(binding, name, getattr(binding, name))
    return tmp_path / "ledger"


def generation(path: Path, numbers: list[int], line: str = "step {}/25 loss 0.5") -> int | None:
    """Train, print a number after each step; return the number of the first one that was learned, None for none."""
    bind(LedgerWriter(path, rank=0, generation=1))
    lines = LineNumbers()
    assert binding.ledger is not None
    for number in numbers:
        binding.ledger.complete_step()
        if lines.is_wanted:
            lines.take(line.format(number))
    reader = LedgerReader(path)
    snapshot = reader.snapshot()
    reader.close()
    return snapshot.first if snapshot.source is Source.LOG else None


def test_numbers_that_go_on_are_the_jobs_steps(ledger: Path) -> None:
    assert generation(ledger, list(range(300, 330))) == 300
    assert generation(ledger, [310, 311, 312]) == 310


def test_numbers_that_begin_again_show_nothing_in_later_generations(ledger: Path) -> None:
    assert generation(ledger, [*range(1, 26), *range(1, 6)]) == 1, "nothing showed it yet"
    assert generation(ledger, [1, 2, 3]) is None


def test_two_names_with_different_numbers_do_not_begin_again(ledger: Path) -> None:
    for line in ("iter {}", "step {}"):
        generation(ledger, [7, 8, 9], line)
    assert generation(ledger, [20, 21]) == 20


def test_a_step_that_a_scaler_skipped_is_no_new_beginning(ledger: Path) -> None:
    assert generation(ledger, [4, 5, 7, 8]) == 4
    assert generation(ledger, [9, 10]) == 9
