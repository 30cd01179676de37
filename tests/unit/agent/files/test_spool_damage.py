"""What the spool holds outlives a power cut; a damaged spool is set aside, and the agent starts with an empty one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast.bus import Message
from holdfast_agent.files.spool import Lane, Spool, open_spool
from holdfast_agent.reconciler import recall_durable

WITHIN_S = 30.0


def message(number: int) -> Message:
    return Message(id=f"m{number}", subject="s", body=b"x" * 5000, headers={})


class LyingDisk:
    """A disk that has of a file's end only what was synced: everything else is gone after a power cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sync = os.fdatasync
        self._durable_bytes: dict[int, int] = {}
        self._changed = threading.Condition()
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)

    def _fdatasync(self, file: int) -> None:
        before = os.fstat(file)
        self._sync(file)
        with self._changed:
            self._durable_bytes[before.st_ino] = before.st_size
            self._changed.notify_all()

    def durable_bytes(self, path: Path) -> int:
        return self._durable_bytes.get(path.stat().st_ino, 0)

    def until_durable(self, path: Path) -> bool:
        """Wait until all of the file that is written now is on the disk."""
        size = path.stat().st_size
        with self._changed:
            return self._changed.wait_for(lambda: self.durable_bytes(path) >= size, WITHIN_S)

    def cut(self, spool: Path, copy: Path) -> Path:
        """Return a copy of the spool as it is after a power cut now."""
        copy.mkdir()
        wal = spool.with_name(f"{spool.name}-wal")
        shutil.copy(spool, copy / spool.name)
        (copy / wal.name).write_bytes(wal.read_bytes()[: self.durable_bytes(wal)])
        return copy / spool.name


async def test_evidence_and_memory_outlive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk(monkeypatch)
    path = tmp_path / "agent.db"
    spool = Spool(path)
    for number in range(3):
        spool.commit([message(number)], {"standing": b"%d" % number})
        assert disk.until_durable(path.with_name("agent.db-wal")), f"commit {number} never reached the disk"
        after = Spool(disk.cut(path, tmp_path / f"after-{number}"))
        assert [it.id for _, it in await after.outbox(Lane.EVIDENCE).pending(10)] == [
            f"m{n}" for n in range(number + 1)
        ]
        assert after.recall("standing") == b"%d" % number
        after.close()
    spool.close()


def damage_header(path: Path) -> None:
    path.write_bytes(b"torn" * 100)


def damage_page(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 64)


def damage_memory(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("update memory set value = x'7b22'")
    db.close()


@pytest.mark.parametrize("damage", [damage_header, damage_page, damage_memory])
def test_a_damaged_spool_is_set_aside(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "agent.db"
    spool = Spool(path)
    spool.commit([message(number) for number in range(20)], {"standing": b"{}"})
    spool.close()
    assert callable(damage)
    damage(path)
    damaged = path.read_bytes()

    spool, aside = open_spool(path, recall_durable)
    assert aside is not None and aside.reason
    assert aside.path.read_bytes() == damaged
    assert spool.recall("standing") is None
    spool.commit([message(1)], {"standing": b"{}"})
    spool.close()
    again, none = open_spool(path, recall_durable)
    assert none is None and again.recall("standing") == b"{}"
    again.close()


def test_a_spool_that_cannot_be_opened_for_now_is_left_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    Spool(path).close()

    def unavailable(_: Spool) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        open_spool(path, unavailable)
    assert [file.name for file in tmp_path.iterdir()] == ["agent.db"]
