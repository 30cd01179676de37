"""A rank's flight recorder is answered while Python holds its lock; a rank that is stopped gives no answer, in time."""

from __future__ import annotations

import asyncio
import gzip
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.trainer.hooks.flight_recorder import SOCKET_PATH_BYTES_MAX, serve, socket_path
from holdfast_agent.tracer import recorder
from holdfast_agent.tracer.recorder import ANSWER_S, NoAnswer, recorder_of

RANK = Path(__file__).with_name("recorder_rank.py")


def stop(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands: till then one of them may answer."""
    os.kill(pid, signal.SIGSTOP)
    give_up = time.monotonic() + 10.0
    while any(" T " not in stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_a_rank_that_holds_the_interpreters_lock_answers_and_one_that_is_stopped_does_not(tmp_path: Path) -> None:
    ledger = tmp_path / "rank-0.ledger"
    socket = socket_path(ledger)
    command = [sys.executable, str(RANK), str(ledger), str(tmp_path / "up")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == b"ready\n", process.stderr.read()
            trace, device, unread = asyncio.run(recorder_of(socket, 0))
            assert trace is not None and device is None and unread == "", "this build has no NCCL"
            assert [record.operation for record in trace.records] == ["all_reduce", "all_reduce"]
            assert [record.input_sizes for record in trace.records] == [((4,),), ((8,),)]
            assert trace.rank == 0 and set(trace.entered.values()) == {2}
            assert oct(socket.stat().st_mode & 0o777) == "0o600"

            stop(process.pid)
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


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "cannot be asked: 0 bytes read"),
        ([b"HTTP/1.0 200 OK"], "cannot be asked: 15 bytes read"),
        ([b"HTTP/1.0 500 Oh\r\n\r\n"], "answers HTTP/1.0 500 Oh"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", b'{"entries": '], "cannot be read"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", gzip.compress(b'{"entries": []}')], "no JSON object"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", pickle.dumps({"entries": []})], "no JSON object"),
        ([b"HTTP/1.0 200 OK\r\n\r\n", b'{"entries": [' + b'{"profiling_name":""},' * 60_000 + b"{}]}"], "objects"),
    ],
)
async def test_an_answer_that_is_cut_short_or_no_recorders_is_none(
    tmp_path: Path, parts: list[bytes], why: str
) -> None:
    socket = socket_path(tmp_path / "rank-0.ledger")
    async with await answering(socket, parts):
        with pytest.raises(NoAnswer, match=why):
            await recorder_of(socket, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_a_link_to_a_socket_of_another_user_is_not_asked(tmp_path: Path) -> None:
    socket, folder = tmp_path / "of-the-machine", tmp_path / "of-the-rank"
    folder.mkdir()
    os.chown(folder, 54_321, 54_321)
    socket_path(folder / "rank-0.ledger").symlink_to(socket)
    async with await answering(socket, [b"HTTP/1.0 200 OK\r\n\r\n", b'{"entries": []}']):
        with pytest.raises(NoAnswer, match="another user"):
            await recorder_of(folder / "rank-0.fr", 0)


async def test_an_answer_in_pieces_is_read_to_its_end_and_no_further_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = socket_path(tmp_path / "rank-0.ledger")
    async with await answering(socket, [b"HTTP/1.0 200 OK\r\n\r\n", b'{"version": "2.10", "ent', b'ries": []}']):
        recorded = await recorder_of(socket, 0)
        assert recorded.host is not None and recorded.host.records == ()
        monkeypatch.setattr(recorder, "ANSWER_BYTES_MAX", 30)
        with pytest.raises(NoAnswer, match="more than 30 bytes"):
            await recorder_of(socket, 0)


NCCL = b"""{"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [
    {"record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0,
     "op_id": 1, "profiling_name": "nccl:all_reduce", "state": "started", "time_created_ns": 5,
     "time_discovered_started_ns": 6,
     "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}]}"""


@pytest.mark.parametrize(
    ("answers", "host", "device", "unread"),
    [
        ({"fr_trace_json": b'{"entries": []}', "dump_nccl_trace_json": NCCL}, 0, 1, ""),
        ({"dump_nccl_trace_json": NCCL}, None, 1, ""),
        ({"fr_trace_json": NCCL, "dump_nccl_trace_json": b"{"}, 1, None, "cannot be asked"),
    ],
)
async def test_the_recorder_of_nccl_is_asked_too(
    tmp_path: Path, answers: dict[str, bytes], host: int | None, device: int | None, unread: str
) -> None:
    socket = socket_path(tmp_path / "rank-0.ledger")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().removeprefix("/handler/")
        status = b"200 OK" if asked in answers else b"404 Not Found"
        writer.write(b"HTTP/1.0 " + status + b"\r\n\r\n" + answers.get(asked, b"Handler not found"))
        writer.close()

    async with await asyncio.start_unix_server(answer, str(socket)):
        told = await recorder_of(socket, 0)
    assert [trace and len(trace.records) for trace in (told.host, told.device)] == [host, device]
    assert unread in told.unread


async def answering(socket: Path, parts: list[bytes]) -> asyncio.Server:
    """Somebody who sends these, each once the one before may have been read, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    return await asyncio.start_unix_server(answer, str(socket))


def test_a_path_that_no_socket_can_have_is_passed_over(tmp_path: Path) -> None:
    ledger = tmp_path / ("x" * SOCKET_PATH_BYTES_MAX) / "rank-0.ledger"
    serve(ledger)
    assert not socket_path(ledger).exists()
