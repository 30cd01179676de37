"""What a script's own log shows of a restart: the truth that `bench/compat.py` compares the product's words with."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def own_log(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("strangers.own_log")


def test_numbers_that_begin_again_show_what_was_lost(own_log: Any, tmp_path: Path) -> None:
    (case,) = (case for case in importlib.import_module("strangers.cases").CASES if case.name == "elastic-record")
    path = tmp_path / "log.csv"
    assert own_log.read_notes(case, path) == []
    path.write_text("0,18,2.5\n0,19,2.25\n1,0,2.0\n1,1,1.75\n1,0,2.0\n1,1,1.5\n1,2,1.2")
    notes = own_log.read_notes(case, path)
    assert [note.step for note in notes] == [18, 19, 20, 21, 20, 21], "the last line is not whole"
    (restart,) = own_log.restarts(notes)
    assert (restart.last, restart.first, restart.lost) == (21, 20, 2)
    assert own_log.same_losses(notes[:4], notes) == (5, 1)
