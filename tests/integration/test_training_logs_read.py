"""The logs of living processes are found by what they have open, and read as they are written."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.training_logs import followed_log, log_reader, rights
from holdfast_agent.training_logs.log_reader import LogNews, LogReader, ReaderFailed, WatchedRanks
from holdfast_agent.training_logs.open_files import FileKey, FoundLog, kind_of, open_logs
from holdfast_agent.training_logs.readings import StepReading
from holdfast_agent.training_logs.tags import Tags
from holdfast_agent.watching.reports import ReportFile, training_log

pytestmark = pytest.mark.integration

RECORDED = Path(__file__).parents[1] / "recorded"
EVENTS = (RECORDED / "events.out.tfevents.recorded").read_bytes()
WAIT_S = 60.0
NOBODY = 65534

WRITER = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Rank:
    """A process that does what it is told, line by line."""

    def __init__(self, *, python_path: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({"PYTHONPATH": python_path} if python_path else {}),
        )
        self._hear("ready")

    def does(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._hear("done")

    def _hear(self, word: str) -> None:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().strip()) != word:
            assert line or self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.end()


class Reads:
    """A reader and all that it has read."""

    def __init__(self) -> None:
        self.reader = LogReader()
        self.news: list[LogNews] = []

    def watch(
        self,
        pids: dict[int, int],
        *,
        generation: int = 1,
        offsets: dict[FileKey, int] | None = None,
        paths: dict[str, int] | None = None,
    ) -> None:
        watched = WatchedRanks(fence=(1, generation), pids=pids, tags=Tags(), paths=paths or {})
        self.reader.watch(watched, offsets or {})

    def losses(self) -> list[float]:
        self.news += self.reader.take()
        readings: list[StepReading] = [reading for news in self.news for reading in news.readings]
        return [reading.values["loss"] for reading in readings if "loss" in reading.values]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"read so far: {self.losses()}"
            time.sleep(0.01)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    monkeypatch.setattr(log_reader, "READ_EVERY_S", 0.02)
    made = Reads()
    yield made
    made.reader.watch(None)


def opened(rank: Rank, path: Path) -> None:
    rank.does(f"file = open({str(path)!r}, 'ab', buffering=0)")


def wrote(rank: Rank, start: int, end: int) -> None:
    data = f"open({str(RECORDED / 'events.out.tfevents.recorded')!r}, 'rb').read()[{start}:{end}]"
    rank.does(f"file.write({data})")


def test_a_log_is_read_as_it_is_written_and_its_parts_wait(rank: Rank, reads: Reads, tmp_path: Path) -> None:
    reads.watch({7: rank.process.pid})
    opened(rank, tmp_path / "events.out.tfevents.1")
    wrote(rank, 0, 3_001)
    reads.until(lambda: len(reads.losses()) > 3)
    some = len(reads.losses())
    wrote(rank, 3_001, len(EVENTS))
    reads.until(lambda: len(reads.losses()) == 41)
    losses = reads.losses()
    assert 3 < some < 41 and [place for place, loss in enumerate(losses) if math.isnan(loss)] == [30]
    assert {(news.rank, news.kind) for news in reads.news} == {(7, "tensorboard")}
    assert reads.news[-1].tags["loss"] == "train/loss" and reads.news[-1].offset == len(EVENTS)


def test_a_log_that_a_child_writes_is_its_ranks_and_one_that_is_read_is_nobodys(rank: Rank, tmp_path: Path) -> None:
    written, read = tmp_path / "run-a.wandb", tmp_path / "run-b.wandb"
    read.touch()
    rank.does(f"import subprocess; child = subprocess.Popen(['sleep', '60'], stdout=open({str(written)!r}, 'wb'))")
    rank.does(f"old = open({str(read)!r}, 'rb')")
    try:
        (found,) = open_logs({3: rank.process.pid})
        assert (found.rank, found.path, kind_of(found.path)) == (3, str(written), "wandb")
    finally:
        rank.does("child.kill(); child.wait()")


def test_a_log_of_the_generation_before_goes_on_where_it_was_read_to(rank: Rank, reads: Reads, tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    reads.watch({0: rank.process.pid})
    opened(rank, path)
    wrote(rank, 0, 3_000)
    reads.until(lambda: len(reads.losses()) > 3)
    before = len(reads.losses())
    rank.does("file.close()")
    # Another process goes on with the same file, and another reader knows how far it was read.
    other, after = Rank(), Reads()
    try:
        opened(other, path)
        wrote(other, 3_000, len(EVENTS))
        after.watch({0: other.process.pid}, generation=2, offsets={reads.news[-1].key: reads.news[-1].offset})
        after.until(lambda: before + len(after.losses()) == 41)
    finally:
        after.reader.watch(None)
        other.end()


def test_what_was_written_last_is_read_when_the_file_is_closed_already(
    rank: Rank, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read a little at a time: the file is closed long before it is read.
    monkeypatch.setattr(followed_log, "READ_BYTES_MAX", 30_000)
    reads.watch({0: rank.process.pid})
    opened(rank, tmp_path / "events.out.tfevents.1")
    wrote(rank, 0, 1_000)
    reads.until(lambda: len(reads.losses()) > 0)
    wrote(rank, 1_000, 25_000)
    rank.does("file.close()")
    reads.until(lambda: len(reads.losses()) == 40)


def test_a_log_that_begins_anew_is_read_anew_and_rubbish_harms_no_other(
    rank: Rank, reads: Reads, tmp_path: Path
) -> None:
    reads.watch({0: rank.process.pid})
    opened(rank, tmp_path / "events.out.tfevents.1")
    rank.does(f"junk = open({str(tmp_path / 'run-x.wandb')!r}, 'wb', buffering=0); junk.write(b'rubbish' * 1000)")
    wrote(rank, 0, len(EVENTS))
    reads.until(lambda: len(reads.losses()) == 41)
    rank.does("file.truncate(0)")
    wrote(rank, 0, 3_000)
    reads.until(lambda: len(reads.losses()) > 41)


def test_files_may_be_named_where_writers_keep_none_open(reads: Reads, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "a"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1").write_bytes(EVENTS)
    (folder / "notes.txt").write_bytes(EVENTS)
    watched = WatchedRanks(
        fence=(1, 1), pids={}, tags=Tags(), folder=str(tmp_path), patterns=("logs/**/*",), first_rank=4
    )
    reads.reader.watch(watched, {})
    reads.until(lambda: len(reads.losses()) == 41)
    assert {news.rank for news in reads.news} == {4}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run ranks as other users")
@pytest.mark.parametrize("way", ["its path", "a link"])
def test_what_a_script_names_is_read_only_if_its_user_may_read_it(rank: Rank, reads: Reads, way: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        closed, own = Path(place, "closed"), Path(place, "own")
        closed.mkdir(mode=0o700)
        own.mkdir()
        os.chown(own, NOBODY, NOBODY)
        (closed / "events.out.tfevents.1").write_bytes(EVENTS)
        link = own / "events.out.tfevents.2"
        link.symlink_to(closed / "events.out.tfevents.1")
        (own / "events.out.tfevents.3").write_bytes(EVENTS[:3_000])
        rank.does(f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")
        named = closed / "events.out.tfevents.1" if way == "its path" else link
        watched = WatchedRanks(
            fence=(1, 1),
            pids={0: rank.process.pid},
            tags=Tags(),
            user="nobody",
            paths={str(named): 0},
            folder=place,
            patterns=("own/*",),
        )
        reads.reader.watch(watched, {})
        reads.until(lambda: len(reads.losses()) > 3)
        # Looked for at the same time.
        assert {news.path for news in reads.news} == {str(own / "events.out.tfevents.3")}
        link.unlink()
        (own / "events.out.tfevents.4").write_bytes(EVENTS)
        reads.until(lambda: len(reads.losses()) >= 41)
        assert str(named) not in {news.path for news in reads.news}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run ranks as other users")
def test_what_a_rank_may_only_write_is_not_read(rank: Rank, reads: Reads) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o777)
        closed = Path(place, "events.out.tfevents.1")
        closed.write_bytes(EVENTS)
        closed.chmod(0o602)
        rank.does(f"data = open({str(RECORDED / 'events.out.tfevents.recorded')!r}, 'rb').read()")
        rank.does(f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")
        rank.does(f"other = os.open({str(closed)!r}, os.O_WRONLY)")
        opened(rank, Path(place, "events.out.tfevents.2"))
        rank.does("file.write(data[:3_000])")
        reads.reader.watch(WatchedRanks(fence=(1, 1), pids={0: rank.process.pid}, tags=Tags(), user="nobody"), {})
        reads.until(lambda: len(reads.losses()) > 3)
        rank.does("file.write(data[3_000:])")
        reads.until(lambda: len(reads.losses()) >= 41)
        assert {Path(news.path).name for news in reads.news} == {"events.out.tfevents.2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run ranks as other users")
def test_what_a_rank_has_open_is_read_once_it_has_its_own_user(
    rank: Rank, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[rights.FileRights | None] = []

    def of_ranks(pids: Iterable[int], user: str) -> rights.FileRights | None:
        found.append(rights.of_ranks(pids, user))
        return found[-1]

    monkeypatch.setattr(log_reader, "of_ranks", of_ranks)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o777)
        closed = Path(place, "events.out.tfevents.1")
        closed.write_bytes(EVENTS)
        closed.chmod(0o600)
        opened(rank, closed)
        reads.reader.watch(WatchedRanks(fence=(1, 1), pids={0: rank.process.pid}, tags=Tags(), user="nobody"), {})
        # The first search is over when the second begins.
        reads.until(lambda: len(found) > 1)
        assert found[0] is None
        rank.does(f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")
        own = Path(place, "events.out.tfevents.2")
        rank.does(f"own = open({str(own)!r}, 'wb', buffering=0)")
        own.write_bytes(EVENTS)
        reads.until(lambda: len(reads.losses()) >= 41)
        assert {news.path for news in reads.news} == {str(own)}


def test_an_error_that_nobody_foresaw_reaches_the_agent(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ranks: dict[int, int]) -> list[FoundLog]:
        raise ZeroDivisionError

    monkeypatch.setattr(log_reader, "open_logs", fail)
    reads.watch({0: os.getpid()})

    def failed() -> bool:
        with contextlib.suppress(ReaderFailed):
            reads.reader.take()
            return False
        return True

    reads.until(failed)


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


@needs("wandb")
def test_an_offline_run_of_weights_and_biases_is_read_while_it_runs(rank: Rank, reads: Reads, tmp_path: Path) -> None:
    reads.watch({0: rank.process.pid})
    rank.does(f"import os; os.environ |= dict(WANDB_MODE='offline', WANDB_SILENT='true', WANDB_DIR={str(tmp_path)!r})")
    rank.does("import wandb; run = wandb.init(project='p', settings=wandb.Settings(console='off'))")
    rank.does("for step in range(50): run.log({'train/loss': float('nan') if step == 40 else 1.0})")
    # It writes out what it has every quarter of a minute or so.
    reads.until(lambda: len(reads.losses()) >= 49)
    assert [place for place, loss in enumerate(reads.losses()) if math.isnan(loss)] == [40]
    assert {(news.rank, news.kind) for news in reads.news} == {(0, "wandb")}
    rank.does("run.finish(); wandb.teardown()")


@needs("tensorboard")
def test_the_writer_of_torch_tells_of_its_file_and_keeps_little_back(rank: Rank, reads: Reads, tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    rank.does(f"import os; os.environ |= dict(HOLDFAST_REPORTS={str(reports)!r}, HOLDFAST_GENERATION='1', RANK='3')")
    rank.does(
        "from holdfast.node.ledger.ledger_file import LedgerWriter; from holdfast.trainer import phases; "
        "from holdfast.trainer.hooks import install_hooks, log_hooks"
    )
    rank.does(f"phases.bind(LedgerWriter({str(tmp_path / 'ledger')!r}, rank=3, generation=1)); install_hooks.install()")
    rank.does("log_hooks.FLUSH_S_MAX = 0.1; from torch.utils.tensorboard import SummaryWriter")
    rank.does(f"writer = SummaryWriter({str(tmp_path / 'logs')!r})")
    ((log, told),) = [(training_log(report), report) for report in ReportFile(reports, 0).read()]
    assert log is not None and Path(log).parent == tmp_path / "logs" and (told.rank, told.generation) == (3, 1)
    reads.watch({3: rank.process.pid}, paths={log: 3})
    rank.does("for step in range(50): writer.add_scalar('train/loss', float('nan') if step == 40 else 1.0, step)")
    reads.until(lambda: len(reads.losses()) == 50)
    assert [place for place, loss in enumerate(reads.losses()) if math.isnan(loss)] == [40]
