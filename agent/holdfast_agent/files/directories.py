"""Layout of the agent's state directory.

The ledgers lie in memory (/dev/shm) behind a link: on a disk, writeback would make ranks wait in the middle of a step.
Where memory has no room for those of a generation, they lie on the disk: without them no rank starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from holdfast.events.parts.job import Purpose
from holdfast.node.trees import remove_tree
from holdfast.node.users.job_user import JobUser
from holdfast.node.users.own_users import give
from holdfast.node.users.user_rights import RunAs, admit, own
from holdfast_agent.companions.environment import RankFiles
from holdfast_agent.files.ledger_memory import LedgerMemory, free_abandoned, has_room
from holdfast_agent.zygote.wire import Fence

PID_FILE = "agent.pid"

CHECKS_KEPT = 5
"""Runs of checks, and of replays, whose logs are kept for each job."""


class AlreadyRunning(RuntimeError):
    """Another agent holds the state directory's lock."""


class Directories:
    def __init__(self, root: Path, run_as: RunAs | None = None) -> None:
        """`run_as` names the user of ranks. If it is not the agent's, it reaches what ranks need, and nothing else."""
        self.root = root.absolute()
        self._memory = LedgerMemory(self.root)
        self.run_as = run_as or RunAs()

    @property
    def spool(self) -> Path:
        return self.root / "agent.db"

    @property
    def code(self) -> Path:
        return self.root / "code"

    def prepare(self) -> None:
        """Make the directories, closed to other users: they hold the secrets of jobs and what ranks print."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        ids = self.run_as.ids
        # Living ranks of another user need their way in.
        if self.run_as.user is None and (ids is None or not ids.has(self.root.stat().st_gid)):
            self.root.chmod(0o700)
        for path in (self.root / "logs", *self._passed()):
            path.mkdir(parents=True, exist_ok=True)
        (self.root / "logs").chmod(0o700)
        self._prepare_ledgers(is_new=False)
        free_abandoned()
        if self.run_as.user is not None:
            self._admit(self.run_as.user.gid)

    def _passed(self) -> tuple[Path, ...]:
        return (self.root / "errors", self.root / "reports", self.root / "homes", self.code)

    def _admit(self, gid: int) -> None:
        """Let the ranks of this group, and no others, pass to what is theirs."""
        ledgers = self.root / "ledgers"
        for path in (self.root, ledgers.readlink() if ledgers.is_symlink() else ledgers, *self._passed()):
            admit(gid, path)

    def _prepare_ledgers(self, *, is_new: bool) -> None:
        """Make the place of the ledgers. Without `is_new` ranks may be using it, so it stays where it is."""
        ledgers = self.root / "ledgers"
        is_made = ledgers.is_symlink() or ledgers.exists()
        if has_room() if is_new or not is_made else ledgers.is_symlink():
            target = self._memory.make()
            self._memory.hold()
            if ledgers.is_symlink() and ledgers.readlink() != target:
                ledgers.unlink()
            elif ledgers.is_dir() and not ledgers.is_symlink():
                remove_tree(ledgers)
            if not ledgers.is_symlink():
                ledgers.symlink_to(target)
        else:
            if ledgers.is_symlink():
                ledgers.unlink()
            ledgers.mkdir(exist_ok=True)

    def lock(self) -> int:
        """Lock the state directory while the process lives. Raises AlreadyRunning if another agent holds the lock."""
        descriptor = os.open(self.root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(
                f"another agent ({self._last_pid()}) uses {self.root}: stop it, or give each node its own --state-dir"
            ) from None
        return descriptor

    def write_pid(self) -> None:
        (self.root / PID_FILE).write_text(f"{os.getpid()}\n")

    def _last_pid(self) -> str:
        try:
            return f"pid {(self.root / PID_FILE).read_text().strip()}"
        except OSError:
            return "its pid is unknown"

    def log_stem(self, job: str, rank: int) -> Path:
        """Return the path of a rank's log files without `.out` and `.err`."""
        return self.root / "logs" / job / f"rank-{rank}"

    def checks_log_stem(self, job: str, fence: Fence, rank: int, purpose: Purpose = "checks") -> Path:
        """Return the log path of a rank of checks or of a replay, apart from the training's logs."""
        return self.root / "logs" / job / f"{purpose}-{fence[0]}-{fence[1]}" / f"rank-{rank}"

    def begin_checks(self, job: str, fence: Fence, purpose: Purpose = "checks") -> None:
        """Prepare the log directory of checks or of a replay, and remove those of old runs."""
        folder = self.checks_log_stem(job, fence, 0, purpose).parent
        folder.mkdir(parents=True, exist_ok=True)
        self.reports(job, "checks").parent.mkdir(mode=0o700, exist_ok=True)
        runs = sorted((path for path in folder.parent.glob(f"{purpose}-*") if path != folder), key=_age)
        for old in runs[: max(0, len(runs) + 1 - CHECKS_KEPT)]:
            shutil.rmtree(old)

    def reports(self, job: str, purpose: Purpose = "train") -> Path:
        """Return the file of reports. That of checks is closed to the job's user, which must not report results."""
        folder = self.root / "reports"
        return (folder / "checks" if purpose == "checks" else folder) / f"{job}.jsonl"

    def ledger(self, job: str, fence: Fence, rank: int) -> Path:
        return self._generation("ledgers", job, fence) / f"rank-{rank}.ledger"

    def rank_files(self, job: str, fence: Fence, rank: int, purpose: Purpose = "train") -> RankFiles:
        return RankFiles(
            vault=self.root,
            ledger=self.ledger(job, fence, rank),
            reports=self.reports(job, purpose),
            error=self._generation("errors", job, fence) / f"rank-{rank}.json",
        )

    def begin_generation(self, job: str, fence: Fence, user: JobUser | None = None) -> None:
        """Prepare the directories of a generation.

        `user` is that of its ranks, None if it is ours. Ranks of any other user can no longer pass.
        """
        # Shared memory may have been cleared or filled from outside: any user may write there.
        self._prepare_ledgers(is_new=True)
        if user is not None:
            self._admit(user.gid)
        elif self.run_as.ids is not None:
            self.root.chmod(0o700)
        for kind in ("ledgers", "errors"):
            folder = self._generation(kind, job, fence)
            folder.mkdir(parents=True, exist_ok=True)
            if user is not None:
                admit(user.gid, folder.parent)
                own(user, folder)
            elif folder.stat().st_uid != os.geteuid():
                # It was prepared for a user of the job's own, which cannot reach what ranks need. The agent writes into
                # files of ranks, and uses their flight recorder, only if they are the folder's owner's.
                os.chown(folder, os.geteuid(), os.getegid())
        if user is not None:
            self._give_files(job, user)
        logs = self.log_stem(job, 0).parent
        logs.mkdir(parents=True, exist_ok=True)
        # The modification time records when a generation of the job last began here; see `jobs`.
        os.utime(logs)

    def remove_old_generations(self, job: str, fence: Fence) -> None:
        """Remove the directories of all generations but this one and the newest other; what cannot be removed is left
        for the next time. For a separate thread."""
        for kind in ("ledgers", "errors"):
            folder = self._generation(kind, job, fence)
            others = sorted((path for path in folder.parent.parent.glob("*/*") if path != folder), key=_age)
            for old in others[:-1]:
                with contextlib.suppress(OSError):
                    remove_tree(old)
            for emptied in {old.parent for old in others[:-1]} - {folder.parent}:
                # It may contain the generation that is kept.
                with contextlib.suppress(OSError):
                    emptied.rmdir()

    def _give_files(self, job: str, user: JobUser) -> None:
        self.reports(job).touch()
        own(user, self.reports(job))
        if (code := self.code / job).is_dir():
            admit(user.gid, code)
        if self.run_as.ids is not None:
            self.home(job).mkdir(mode=0o700, exist_ok=True)
            own(user, self.home(job))

    def home(self, job: str) -> Path:
        """Return the home directory of a job whose user is the job's own."""
        return self.root / "homes" / job

    def begin_job(self, directory: Path, user: JobUser) -> None:
        """Make the job's own directory for its user; an existing one is left as it is."""
        if not directory.exists():
            with contextlib.suppress(OSError):
                give(directory, user)

    def jobs(self) -> dict[str, float]:
        """Return the jobs that have logs here, with the time at which each last began."""
        return {logs.name: _age(logs) for logs in (self.root / "logs").iterdir()}

    def set_aside(self, job: str) -> None:
        """Rename a job's files at once; `remove_set_aside` deletes them later."""
        aside = self.root / "forgotten"
        aside.mkdir(exist_ok=True)
        holder = Path(tempfile.mkdtemp(dir=aside))
        logs = self.log_stem(job, 0).parent
        # The logs go last: `jobs` finds a job by them.
        reports = self.reports(job), self.reports(job, "checks")
        for number, path in enumerate((self.code / job, *reports, self.home(job), logs)):
            with contextlib.suppress(FileNotFoundError):
                path.rename(holder / str(number))

    def remove_set_aside(self) -> None:
        """Delete what was set aside, also by an agent that was killed meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self.root / "forgotten")

    def forget_ledgers(self) -> None:
        """Free the memory of the ledgers."""
        self._memory.free()

    def _generation(self, kind: str, job: str, fence: Fence) -> Path:
        return self.root / kind / job / f"{fence[0]}-{fence[1]}"


def _age(path: Path) -> float:
    return path.stat().st_mtime
