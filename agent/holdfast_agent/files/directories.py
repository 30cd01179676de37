"""Where an agent keeps what it keeps, below its state directory.

The ledgers are in memory (/dev/shm), reached by a link: on a disk, writeback would now and then make a rank wait for
the journal in the middle of a step.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from holdfast.events.parts.job import Purpose
from holdfast_agent.companions.environment import RankFiles
from holdfast_agent.zygote.wire import Fence

SHARED_MEMORY = Path("/dev/shm")

CHECKS_KEPT = 5
"""Of each job, the logs of its last runs of checks, and of its last replays."""


class AlreadyRunning(RuntimeError):
    """Another agent holds the state directory."""


class Directories:
    """The paths of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def spool(self) -> Path:
        """The agent's memory."""
        return self.root / "agent.db"

    @property
    def code(self) -> Path:
        """The versions of code."""
        return self.root / "code"

    def prepare(self) -> None:
        """Make what is missing."""
        for name in ("logs", "errors", "reports"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._prepare_ledgers()

    def _prepare_ledgers(self) -> None:
        ledgers = self.root / "ledgers"
        if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
            target = self._in_memory()
            target.mkdir(mode=0o700, exist_ok=True)
            if not ledgers.is_symlink() or ledgers.resolve() != target:
                ledgers.unlink(missing_ok=True)
                ledgers.symlink_to(target)
        else:
            ledgers.mkdir(exist_ok=True)

    def lock(self) -> int:
        """Make sure that no other agent works here; the descriptor holds the lock.

        Raises:
            AlreadyRunning: one does.
        """
        descriptor = os.open(self.root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(
                f"another agent works in {self.root}: give each node a --state-dir of its own"
            ) from None
        return descriptor

    def log_stem(self, job: str, rank: int) -> Path:
        """A rank's log files without `.out` and `.err`."""
        return self.root / "logs" / job / f"rank-{rank}"

    def checks_log_stem(self, job: str, fence: Fence, rank: int, purpose: Purpose = "checks") -> Path:
        """The same for a rank of checks or of a replay: the training's last words must stay what they are."""
        return self.root / "logs" / job / f"{purpose}-{fence[0]}-{fence[1]}" / f"rank-{rank}"

    def begin_checks(self, job: str, fence: Fence, purpose: Purpose = "checks") -> None:
        """Make room for the logs of checks or of a replay, and forget those of long ago."""
        folder = self.checks_log_stem(job, fence, 0, purpose).parent
        folder.mkdir(parents=True, exist_ok=True)
        runs = sorted((path for path in folder.parent.glob(f"{purpose}-*") if path != folder), key=_age)
        for old in runs[: max(0, len(runs) + 1 - CHECKS_KEPT)]:
            shutil.rmtree(old)

    def reports(self, job: str) -> Path:
        """Where the ranks of a job write their reports."""
        return self.root / "reports" / f"{job}.jsonl"

    def ledger(self, job: str, fence: Fence, rank: int) -> Path:
        """A rank's ledger."""
        return self._generation("ledgers", job, fence) / f"rank-{rank}.ledger"

    def rank_files(self, job: str, fence: Fence, rank: int) -> RankFiles:
        """The files a rank writes besides its output."""
        return RankFiles(
            vault=self.root,
            ledger=self.ledger(job, fence, rank),
            reports=self.reports(job),
            error=self._generation("errors", job, fence) / f"rank-{rank}.json",
        )

    def begin_generation(self, job: str, fence: Fence) -> None:
        """Make room for a generation and forget those before the last one."""
        # Shared memory may have been cleared by somebody in the meantime.
        self._prepare_ledgers()
        for kind in ("ledgers", "errors"):
            folder = self._generation(kind, job, fence)
            folder.mkdir(parents=True, exist_ok=True)
            others = sorted((path for path in folder.parent.parent.glob("*/*") if path != folder), key=_age)
            for old in others[:-1]:
                shutil.rmtree(old)
            for emptied in {old.parent for old in others[:-1]} - {folder.parent}:
                # It may hold the one that is kept.
                with contextlib.suppress(OSError):
                    emptied.rmdir()
        logs = self.log_stem(job, 0).parent
        logs.mkdir(parents=True, exist_ok=True)
        # When a generation of the job began here last: so `jobs` knows.
        os.utime(logs)

    def jobs(self) -> dict[str, float]:
        """The jobs that have logs here, and when each began here last."""
        return {logs.name: _age(logs) for logs in (self.root / "logs").iterdir()}

    def set_aside(self, job: str) -> None:
        """Give the names of a job's files free at once: `remove_set_aside` may take its time over the files."""
        aside = self.root / "forgotten"
        aside.mkdir(exist_ok=True)
        holder = Path(tempfile.mkdtemp(dir=aside))
        for path in (self.code / job, self.reports(job), self.log_stem(job, 0).parent):
            # The logs go last: by them the job is known.
            with contextlib.suppress(FileNotFoundError):
                path.rename(holder / path.name)

    def remove_set_aside(self) -> None:
        """Remove what was set aside, by this agent or by one that was killed over it."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / "forgotten")

    def forget_ledgers(self) -> None:
        """Give the memory of the ledgers back."""
        if (self.root / "ledgers").is_symlink():
            shutil.rmtree(self._in_memory(), ignore_errors=True)

    def _generation(self, kind: str, job: str, fence: Fence) -> Path:
        return self.root / kind / job / f"{fence[0]}-{fence[1]}"

    def _in_memory(self) -> Path:
        # Containers may share /dev/shm and call their state directories the same: path and inode tell them apart.
        stat = self.root.stat()
        name = f"{self.root.resolve()} {stat.st_dev} {stat.st_ino}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return SHARED_MEMORY / f"holdfast-{os.getuid()}-{digest}"


def _age(path: Path) -> float:
    return path.stat().st_mtime
