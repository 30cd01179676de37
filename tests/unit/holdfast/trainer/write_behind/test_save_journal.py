"""The journal of a rank's last save, which a power cut may leave empty or torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.trainer.write_behind.journal import FOLDER, Journal
from holdfast.trainer.write_behind.saved_files import JournalEntry

SAVED = JournalEntry(generation=1, step=2, world_size=4, saved_at_ns=0, files={"/a.pt": None})


@pytest.mark.parametrize("bytes_left", [0, 20])
def test_a_torn_journal_is_reported_and_replaced_by_the_next_save(
    tmp_path: Path, bytes_left: int, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, 3)
    assert journal.open() is None
    journal.answered(SAVED)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:bytes_left])
    journal = Journal(tmp_path, 3)
    assert journal.open() is None
    assert "it is not known whether the last save was lost" in caplog.text
    journal.answered(SAVED)
    assert Journal(tmp_path, 3).open() == SAVED
