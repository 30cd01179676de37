"""A rank's flight recorder is answered while Python holds its lock; a rank that is stopped gives no answer, in time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.trainer.flight_recorder import SOCKET_PATH_BYTES_MAX, serve, socket_path
from holdfast_agent.tracer.recorder import ANSWER_S, NoAnswer, recorder_of

RANK = Path(__file__).with_name("recorder_rank.py")


def test_a_rank_that_holds_the_interpreters_lock_answers_and_one_that_is_stopped_does_not(tmp_path: Path) -> None:
    ledger = tmp_path / "rank-0.ledger"
    socket = socket_path(ledger)
    command = [sys.executable, str(RANK), str(ledger), str(tmp_path / "up")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == b"ready\n", process.stderr.read()
            trace = asyncio.run(recorder_of(socket, 0))
            assert [record.operation for record in trace.records] == ["all_reduce", "all_reduce"]
            assert [record.input_sizes for record in trace.records] == [((4,),), ((8,),)]
            assert trace.rank == 0 and set(trace.entered.values()) == {2}
            assert oct(socket.stat().st_mode & 0o777) == "0o600"

            os.kill(process.pid, signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(NoAnswer, match="did not answer within"):
                asyncio.run(recorder_of(socket, 0))
            assert time.monotonic() - began < ANSWER_S + 5
        finally:
            process.kill()
        said = process.stderr.read()
    assert b"what the script says" in said and b"WorkerServer" not in said


async def test_where_nobody_serves_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="cannot be asked"):
        await recorder_of(socket_path(tmp_path / "rank-1.ledger"), 1)


def test_a_path_that_no_socket_can_have_is_passed_over(tmp_path: Path) -> None:
    ledger = tmp_path / ("x" * SOCKET_PATH_BYTES_MAX) / "rank-0.ledger"
    serve(ledger)
    assert not socket_path(ledger).exists()
