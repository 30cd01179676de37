"""Files below --log-dir."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import Launch
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.code_place import CodePlace
from holdfast_agent.companions.start_command import start_command
from holdfast_agent.files.directories import Directories
from holdfast_agent.zygote.copy_file import CopyFile
from holdfast_agent.zygote.wire import RankPlan


def plans(tmp_path: Path, launch: Launch, nnodes: int = 1) -> tuple[RankPlan, ...]:
    job = JobSpec(name="j", script="s", nnodes=nnodes, nproc_per_node=2, cwd="/", directory="/d", launch=launch)
    placement = Placement(job=job, node_rank=nnodes - 1, master_addr="a", master_port=1)
    order = NodeOrder(node="n", epoch=1, generation=3, job="j", placement=placement)
    return start_command(order, Directories(tmp_path / "agent"), CodePlace(), None).ranks


def test_streams_go_to_torchruns_files_of_their_attempt_and_local_rank(tmp_path: Path) -> None:
    first, second = plans(tmp_path, Launch(log_dir="/logs/run_1", redirects="1:1", tee="0:3", no_python=True))
    names = {"out": "stdout.log", "err": "stderr.log", "error": "error.json"}
    assert first.copies == {stream: f"/logs/run_1/attempt_2/0/{name}" for stream, name in names.items()}
    assert second.copies == {stream: f"/logs/run_1/attempt_2/1/{names[stream]}" for stream in ("out", "error")}
    assert (first.shown, second.shown) == (3, 0) and first.is_program
    assert plans(tmp_path, Launch(tee="3"))[1].copies == {}, "--log-dir is /dev/null"
    _, fourth = plans(tmp_path, Launch(log_dir="/logs/run_1", tee="1"), nnodes=2)
    assert fourth.copies["out"] == "/logs/run_1_1/attempt_2/1/stdout.log" and fourth.shown == 1


def test_a_copy_has_all_bytes_and_one_that_cannot_be_written_disturbs_nothing(tmp_path: Path) -> None:
    copy = CopyFile(tmp_path / "attempt_0" / "1" / "stdout.log", None)
    copy.write(b"a line\nhalf")
    copy.write(b" of one")
    copy.close()
    assert copy._path.read_bytes() == b"a line\nhalf of one"
    (tmp_path / "file").write_text("")
    closed = CopyFile(tmp_path / "file" / "stdout.log", None)
    closed.write(b"lost")
    closed.close()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("is_read", [False, True], ids=["nothing reads it", "something reads it and stops"])
def test_a_pipe_in_its_place_holds_up_nothing(tmp_path: Path, is_read: bool) -> None:
    pipe = tmp_path / "stdout.log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    copy = CopyFile(pipe, None)
    copy.write(bytes(1 << 20))
    copy.close()
    if is_read:
        os.close(reader)
