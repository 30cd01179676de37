import os
from pathlib import Path

import pytest

from holdfast.cli.commands.cluster.logs import Follower
from holdfast.embedded.processes.logfile import RotatingLog, tail
from holdfast.embedded.processes.logpipe import LogPipe


def test_a_log_rotates_by_size_and_drops_the_oldest(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", bytes_max=100, files_max=3)
    for number in range(60):
        log.write(b"line %02d..\n" % number)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["x.log", "x.log.1", "x.log.2"]
    assert all((tmp_path / name).stat().st_size <= 100 for name in files)
    assert (tmp_path / "x.log").read_text().splitlines()[-1] == "line 59.."


def test_the_tail_reaches_into_the_rotated_file(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", bytes_max=100)
    for number in range(15):
        log.write(b"line %02d..\n" % number)
    log.close()
    assert tail(tmp_path / "x.log", 8) == [f"line {number:02}.." for number in range(7, 15)]
    assert tail(tmp_path / "x.log", 0) == []
    assert tail(tmp_path / "none.log", 5) == []


def test_the_tail_of_a_long_log_without_a_final_newline(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("a" * 200_000 + "\nb\nunfinished")
    assert tail(tmp_path / "x.log", 2) == ["b", "unfinished"]
    assert tail(tmp_path / "x.log", 5)[0] == "a" * 200_000
    assert tail(tmp_path / "x.log", 1, size=200_002) == ["b"]


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log")
    full = os.open("/dev/full", os.O_WRONLY)
    real = os.dup(log.fileno())
    os.dup2(full, log.fileno())
    log.write(b"lost\n")
    os.dup2(real, log.fileno())
    log.write(b"kept\n")
    log.close()
    os.close(full)
    os.close(real)
    assert (tmp_path / "x.log").read_text() == "[holdfast: 5 bytes of this log were lost, the disk was full]\nkept\n"


async def test_last_words_are_kept_and_a_lingering_writer_is_not_waited_for(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log")
    pipe = LogPipe(log)
    lingering = os.dup(pipe.writing_end)
    os.write(pipe.writing_end, b"last words\n")
    pipe.close_writing_end()
    pipe.drain()
    assert pipe.open
    pipe.close()
    os.close(lingering)
    log.close()
    assert (tmp_path / "x.log").read_text() == "last words\n"


def test_following_survives_rotation(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = RotatingLog(path, bytes_max=30)
    log.write(b"old\n")
    follower = Follower(path, path.stat().st_size)
    expected = [f"line {number}" for number in range(12)]
    seen: list[str] = []
    for line in expected:
        log.write(line.encode() + b"\n")
        seen += follower.read()
    log.write(b"half")
    assert follower.read() == []
    log.write(b" and half\n")
    seen += follower.read()
    log.close()
    assert seen == [*expected, "half and half"]


@pytest.mark.parametrize("lines", [1, 3, 100])
def test_the_tail_is_what_splitlines_says(tmp_path: Path, lines: int) -> None:
    text = "\n".join(f"{'x' * (number * 997)} {number}" for number in range(90)) + "\n"
    (tmp_path / "x.log").write_text(text)
    assert tail(tmp_path / "x.log", lines) == text.splitlines()[-lines:]
