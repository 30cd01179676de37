"""A node keeps the files of the jobs that began there last, and what belongs to a file goes with it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog.testing
from structlog import BoundLogger

from holdfast.node.trees import remove_tree
from holdfast_agent.files import file_retention
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.file_retention import FileRetention, outdated
from holdfast_agent.files.spool import Spool
from holdfast_agent.watching.watcher import checks_key, logs_key, model_key, reports_key, steps_key
from tests.scenes.nested_directories import make_deep


def test_the_jobs_that_began_last_are_kept_and_the_present_one_whenever_it_began() -> None:
    jobs = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert outdated(jobs, "e", 2) == ["a", "b"]
    assert outdated(jobs, "a", 2) == ["b"]
    assert outdated(jobs, "d", 3) == []
    assert outdated({}, "a", 1) == []


def test_a_job_that_begins_again_is_the_newest(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    directories.prepare()
    for epoch, job in enumerate(("a", "b")):
        directories.begin_generation(job, (epoch, 1))
        os.utime(directories.log_stem(job, 0).parent, (epoch, epoch))
    directories.begin_generation("a", (2, 1))
    assert outdated(directories.jobs(), "c", 1) == ["b"]
    directories.forget_ledgers()


class Node:
    """A node's files, on which jobs begin one after the other."""

    def __init__(self, root: Path, jobs_max: int) -> None:
        self.directories = Directories(root)
        self.directories.prepare()
        self.spool = Spool(self.directories.spool)
        self.removed: list[str] = []
        self.retention = FileRetention(self.directories, self.spool, jobs_max, self.removed.append)
        self.epoch = 0

    def begin(self, job: str) -> None:
        self.epoch += 1
        self.directories.begin_generation(job, (self.epoch, 1))
        self.directories.remove_old_generations(job, (self.epoch, 1))
        self.directories.log_stem(job, 0).with_suffix(".out").write_text(job)
        self.directories.reports(job).write_text("{}\n")
        self.directories.begin_checks(job, (self.epoch, 1))
        self.directories.reports(job, "checks").write_text("{}\n")
        keys = (steps_key, reports_key, checks_key, logs_key, model_key)
        self.spool.commit(memory={key(job): b"1" for key in keys})
        # The clock of a file system may be coarser than this test is fast.
        os.utime(self.directories.log_stem(job, 0).parent, (self.epoch, self.epoch))
        self.retention.begin(job)

    def has(self, job: str) -> list[bool]:
        return [
            self.directories.log_stem(job, 0).with_suffix(".out").exists(),
            self.directories.reports(job).exists(),
            self.directories.reports(job, "checks").exists(),
            self.spool.recall(steps_key(job)) is not None,
            self.spool.recall(reports_key(job)) is not None,
            self.spool.recall(checks_key(job)) is not None,
            self.spool.recall(logs_key(job)) is not None,
            self.spool.recall(model_key(job)) is not None,
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.retention.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self.directories.forget_ledgers()
            self.spool.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.005)


async def test_what_a_job_left_goes_all_together(tmp_path: Path) -> None:
    node = Node(tmp_path, jobs_max=2)
    async with node.running():
        for job in ("a", "b", "c"):
            node.begin(job)
        await until(lambda: not (tmp_path / "forgotten").exists())
        assert node.has("a") == [True] * 8
        node.begin("d")
        await until(lambda: not any(node.has("a")) and not (tmp_path / "forgotten").exists())
        assert node.has("b") == node.has("c") == [True] * 8
        assert node.removed == ["a"], "the code store learns it"
        assert "a" not in {path.name for kind in ("errors", "ledgers") for path in (tmp_path / kind).iterdir()}
        # A forgotten name comes again, and goes again when its turn comes.
        for job in ("a", "e"):
            node.begin(job)
        await until(lambda: not any(node.has("b")) and not any(node.has("c")))
        assert node.has("a") == [True] * 8


async def test_the_job_that_begins_is_spared_and_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, jobs_max=1)
    for job in ("old", "a"):
        node.begin(job)
    node.directories.set_aside("old")
    assert list((tmp_path / "forgotten").iterdir())
    node.begin("b")
    node.begin("a")
    async with node.running():
        await until(lambda: not (tmp_path / "forgotten").exists())
        assert node.has("a") == [True] * 8


async def test_a_memory_that_refuses_ends_nobody_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A logger of its own: what the whole process logs may have been narrowed by a test before.
    said = structlog.testing.LogCapture()
    monkeypatch.setattr(
        file_retention, "log", structlog.wrap_logger(None, processors=[said], wrapper_class=BoundLogger)
    )
    node = Node(tmp_path, jobs_max=1)
    for job in ("a", "b"):
        node.begin(job)
    disk = sqlite3.connect(node.directories.spool, isolation_level=None)
    # As a full disk does: in the middle of it, with the transaction left open.
    disk.execute("create trigger refuse before delete on memory begin select raise(fail, 'disk is full'); end")
    async with node.running():
        node.begin("c")
        await until(lambda: any(line.get("error") == "disk is full" for line in said.entries))
        assert node.has("a") == [True] * 8
        disk.execute("drop trigger refuse")
        disk.close()
        node.begin("d")
        await until(lambda: not any(node.has("a")) and not any(node.has("b")))


def test_directories_that_a_job_has_nested_without_end_are_removed(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "node")
    directories.prepare()
    for epoch in range(3):
        directories.begin_generation("j", (epoch, 1))
        errors = directories.rank_files("j", (epoch, 1), 0).error.parent
        make_deep(errors, 1_500)
        os.utime(errors, (epoch, epoch))
    directories.home("j").mkdir()
    make_deep(directories.home("j"), 1_500)
    directories.remove_old_generations("j", (2, 1))
    assert [path.name for path in (directories.root / "errors" / "j").iterdir()] == ["1-1", "2-1"]
    directories.set_aside("j")
    directories.remove_set_aside()
    assert not (directories.root / "forgotten").exists() and not directories.home("j").exists()
    directories.forget_ledgers()
    remove_tree(directories.root)
