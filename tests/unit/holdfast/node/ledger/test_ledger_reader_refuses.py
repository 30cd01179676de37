"""What a rank may put in place of its ledger does not hold up or mislead its reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import LedgerError
from holdfast.node.ledger.ledger_reader import LedgerReader


def test_a_pipe_a_link_and_a_directory_are_no_ledgers(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "true", rank=0, generation=1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("true")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "link", "directory"):
        with pytest.raises(LedgerError, match=name):
            LedgerReader(tmp_path / name)
    reader = LedgerReader(tmp_path / "true")
    reader.close()
    writer.close()
