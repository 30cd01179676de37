"""Interpreters that are made ahead import what the ranks before them had imported, as far as that has no effects."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from holdfast.trainer import known_imports


def test_what_a_rank_imported_is_imported_ahead_and_an_order_is_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    (tmp_path / "job").mkdir()
    for name in ("einops", "einops.parts", "mpi4py"):
        monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    known_imports.note_imports()
    imported: list[str] = []
    ours, theirs = socket.socketpair()

    def take(name: str) -> None:
        if name.startswith(("einops", "mpi4py")):
            imported.append(name)
        if name == "einops.parts":
            theirs.send(b"a plan")

    monkeypatch.setattr(known_imports, "_import", take)
    with ours, theirs:
        waits = threading.Thread(target=known_imports.import_until_ready, args=(ours,))
        waits.start()
        waits.join(20)
        assert not waits.is_alive()
    assert imported == ["einops", "einops.parts"], "the import of others may have effects"


def test_a_restart_that_imports_the_same_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setitem(sys.modules, "einops", sys.modules[__name__])
    known_imports.note_imports()
    first = (tmp_path / known_imports.FILE).stat()
    known_imports.note_imports()
    second = (tmp_path / known_imports.FILE).stat()
    # To look at what is noted may count as an access.
    assert (second.st_ino, second.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    monkeypatch.setitem(sys.modules, "einops.parts", sys.modules[__name__])
    known_imports.note_imports()
    assert b"einops.parts" in (tmp_path / known_imports.FILE).read_bytes()
