"""A backup is written where no other user reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store import dump


def test_a_file_that_another_user_made_where_the_backup_is_drafted_receives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "_run", lambda *_, stdout: stdout.write(b"all passwords") and None)
    theirs = tmp_path / "backup.part"
    theirs.touch()
    with theirs.open("rb") as opened:
        assert dump.write(Path(), "postgresql://a@b/c", tmp_path / "backup") == 13
        assert opened.read() == b""
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
