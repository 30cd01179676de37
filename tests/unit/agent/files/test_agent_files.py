"""What the agent and the zygote keep in files: output, the spool, reports, and the environment they hand on."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.bus import Message, StreamPosition
from holdfast.events import CheckpointSaved
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import Launch
from holdfast.node.frames import Frames, WireError, decode, framed
from holdfast.node.rank_variables import RESERVED, STORE_PREFIX
from holdfast.orders.node import NodeOrder, Placement
from holdfast.store import Published
from holdfast.trainer import checkpoint_saved, phase, report, step
from holdfast_agent.companions.environment import RankFiles, public_environment, rank_environment
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.spool import MEASUREMENTS_KEPT_MAX, MEASUREMENTS_MAX, Lane, Spool
from holdfast_agent.watching.reports import ReportFile, event_of
from holdfast_agent.zygote.rank_logs import PIECE_BYTES_MAX, Output, RotatingFile, Tail
from holdfast_agent.zygote.wire import MESSAGE_BYTES_MAX, Attach, commands, reports

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(number: int) -> Message:
    return Message(id=f"m{number}", subject="s", body=b"%d" % number, headers={"a": "b"})


def test_a_full_file_is_moved_aside_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "logs" / "rank-0.out", bytes_max=10, files_max=3)
    for number in range(5):
        file.write(b"line %d\n\n" % number)
    file.close()
    found = {path.name: path.read_bytes()[:6] for path in (tmp_path / "logs").iterdir()}
    assert found == {"rank-0.out": b"line 4", "rank-0.out.1": b"line 3", "rank-0.out.2": b"line 2"}
    again = RotatingFile(tmp_path / "logs" / "rank-0.out", bytes_max=100, files_max=3)
    again.write(b"more")
    assert (tmp_path / "logs" / "rank-0.out").read_bytes() == b"line 4\n\nmore"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    file = RotatingFile(Path("/dev/full"))
    file.write(b"lost")
    file.write(b"too")
    assert file.lost_bytes == 7


def test_the_tail_keeps_the_end() -> None:
    tail = Tail(bytes_max=8)
    for number in range(100):
        tail.add(b"%02d\n" % number)
    tail.add(b"\xff")
    assert tail.text() == "7\n98\n99\n"[-7:] + "\ufffd"


def test_stacks_of_many_threads_do_not_push_the_error_out_of_the_tail() -> None:
    tail = Tail()
    tail.add(b"CUDA error: unspecified launch failure\n")
    for thread in range(40):
        tail.add(b"Thread 0x%016x (most recent call first):\n" % thread)
        for frame in range(16):
            tail.add(b'  File "/env/lib/python3.11/site-packages/deep/module.py", line %d in step\n' % frame)
    assert tail.text() == "CUDA error: unspecified launch failure\n"


def test_output_goes_to_file_tail_and_follower(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    tail, sent = Tail(), []
    output = Output(reading, RotatingFile(tmp_path / "out"), tail)
    os.write(writing, b"before anyone follows\n")
    assert output.pump()
    output.follower = lambda new, is_open: sent.append((new, is_open))
    os.write(writing, b"one\ntw")
    assert output.pump()
    os.write(writing, b"o\n" + b"x" * (PIECE_BYTES_MAX - 1) + "\u00e9y\n".encode())
    assert output.pump()
    os.write(writing, b"last")
    os.close(writing)
    assert not output.pump()
    output.close()
    assert sent == [
        (["one"], False),
        (["two", "x" * (PIECE_BYTES_MAX - 1)], True),
        (["\u00e9y"], False),
        (["last"], False),
    ]
    assert tail.text().startswith("before anyone follows\none\ntwo\n")
    assert (tmp_path / "out").read_bytes().endswith(b"y\nlast")


def test_a_bar_of_progress_is_forwarded_while_it_moves(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    sent: list[tuple[list[str], bool]] = []
    output = Output(reading, RotatingFile(tmp_path / "out"), Tail())
    output.follower = lambda new, is_open: sent.append((new, is_open))
    for part in (b"\r 10 %", b"\r 90 %", b"\r100 %\nnext\n"):
        os.write(writing, part)
        assert output.pump()
    os.write(writing, b"\r 1 %")
    os.close(writing)
    assert not output.pump()
    output.close()
    assert sent == [
        (["\r 10 %"], True),
        (["\r 90 %"], True),
        (["\r100 %", "next"], False),
        (["\r 1 %"], True),
        ([""], False),
    ]


async def test_the_spool_survives_and_keeps_order_and_lanes_apart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "agent.db")
    spool.commit([message(1), message(2)], {"standing": b"x"})
    spool.commit([message(3)], lane=Lane.MEASUREMENTS)
    spool.close()
    spool = Spool(tmp_path / "agent.db")
    evidence = spool.outbox(Lane.EVIDENCE)
    pending = await evidence.pending(10)
    assert [it for _, it in pending] == [message(1), message(2)]
    assert spool.recall("standing") == b"x"
    assert spool.recall("other") is None
    waiting = asyncio.create_task(evidence.until_empty())
    await evidence.published({pending[0][0]: None})
    assert [it.id for _, it in await evidence.pending(10)] == ["m2"]
    assert not waiting.done()
    await evidence.published({pending[1][0]: None})
    await waiting
    assert [it.id for _, it in await spool.outbox(Lane.MEASUREMENTS).pending(10)] == ["m3"]


def test_only_its_owner_reads_the_spool_also_one_of_an_older_version(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    before = os.umask(0o022)
    try:
        path.touch(0o644)
        spool = Spool(path)
        spool.commit([message(1)])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        spool.close()
    finally:
        os.umask(before)
    assert modes == {"agent.db": 0o600, "agent.db-wal": 0o600, "agent.db-shm": 0o600}


def test_only_its_owner_enters_the_state_directory(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir(mode=0o755)
    directories = Directories(root)
    directories.prepare()
    directories.forget_ledgers()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_the_prefix_of_the_store_is_a_secret_of_one_generation(tmp_path: Path) -> None:
    def prefix(token: str, generation: int, node: str) -> str:
        job = JobSpec(name="j", script="s", nnodes=2, cwd="/", directory="/d", token=token)
        placement = Placement(job=job, node_rank=0, master_addr="::1", master_port=1)
        order = NodeOrder(node=node, epoch=1, generation=generation, job="j", placement=placement)
        files = RankFiles(vault=tmp_path, ledger=tmp_path, reports=tmp_path, error=tmp_path)
        return rank_environment({}, order, placement, 0, files)[STORE_PREFIX]

    assert prefix("a", 1, "n1") == prefix("a", 1, "n2")
    assert len({prefix("a", 1, "n1"), prefix("a", 2, "n1"), prefix("b", 1, "n1")}) == 3
    assert prefix("", 1, "n1") == ""


async def test_the_newest_published_messages_can_be_published_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "agent.db")
    lane = spool.outbox(Lane.MEASUREMENTS)
    spool.commit([message(number) for number in range(MEASUREMENTS_KEPT_MAX + 5)], lane=Lane.MEASUREMENTS)
    spool.commit([message(2000)])
    for each in (lane, spool.outbox(Lane.EVIDENCE)):
        pending = await each.pending(1000)
        await each.published({position: StreamPosition("S", number) for number, (position, _) in enumerate(pending, 1)})
        assert await each.pending(10) == []
    spool.commit([message(1000)], lane=Lane.MEASUREMENTS)
    newest = MEASUREMENTS_KEPT_MAX + 5
    assert await lane.newest_published() == [Published(StreamPosition("S", newest), f"m{newest - 1}")]
    assert [it.message_id for it in await lane.published_in("S")] == [f"m{number}" for number in range(5, newest)]
    assert await lane.publish_again(StreamPosition("S", newest - 1)) == 2
    again = [it.id for _, it in await lane.pending(1000)]
    assert again == [f"m{newest - 2}", f"m{newest - 1}", "m1000"]
    assert len(await lane.published_in("S")) == MEASUREMENTS_KEPT_MAX - 2
    assert await spool.outbox(Lane.EVIDENCE).pending(10) == []


async def test_the_oldest_measurements_are_given_up(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "agent.db")
    spool.commit([message(0)])
    spool.commit([message(number) for number in range(MEASUREMENTS_MAX + 5)], lane=Lane.MEASUREMENTS)
    assert spool.forget_measurements() == 5
    assert spool.forget_measurements() == 0
    assert (await spool.outbox(Lane.MEASUREMENTS).pending(1))[0][1].id == "m5"
    assert len(await spool.outbox(Lane.EVIDENCE).pending(10)) == 1


def test_reports_are_read_from_where_the_agent_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.jsonl"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HOLDFAST_GENERATION", "2")
    reports = ReportFile(path, 0)
    assert reports.read() == []
    checkpoint_saved(step=7, path="/c/7", checkpoint_bytes=12, took_s=0.5, steps=[5, 7])
    (first,) = reports.read()
    assert (first.rank, first.generation) == (3, 2)
    order = NodeOrder(node="n", epoch=1, generation=2, job="j")
    saved = event_of(first, order, "n", NOW)
    assert isinstance(saved, CheckpointSaved)
    assert (saved.step, saved.path, saved.checkpoint_bytes, saved.steps) == (7, "/c/7", 12, (5, 7))
    assert (saved.job, saved.node, saved.generation, saved.took_s) == ("j", "n", 2, 0.5)
    with path.open("ab") as file:
        file.write(b"{ half a line")
    report("note", text="hello")
    with path.open("ab") as file:
        file.write(b'{"kind": "unfinished')
    (note,) = ReportFile(path, reports.offset).read()
    assert (note.kind, event_of(note, order, "n", NOW)) == ("note", None)


def test_reports_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    head = b'{"kind":"note","at_ns":1,"rank":0,"generation":1'
    nested = head + b',"fields":{"x":[{"y":' + b"[" * 100_000 + b"\n"
    path = tmp_path / "job.jsonl"
    path.write_bytes(nested + b"\xff\n" + head + b',"fields":{"x":"\xff"}}\n' + head + b"}\n")
    (sound,) = ReportFile(path, 0).read()
    assert sound.kind == "note"


def test_outside_holdfast_the_library_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_REPORTS", raising=False)
    step(step=1, loss=0.1)
    report("nothing")
    with phase("forward"):
        pass


def test_a_rank_gets_torchruns_variables_and_no_addresses(tmp_path: Path) -> None:
    job = JobSpec(
        name="j",
        script="s",
        nnodes=2,
        nproc_per_node=2,
        cwd="/",
        directory="/d",
        mesh="dp=4",
        env=dict.fromkeys(RESERVED, "of another job") | {"OMP_NUM_THREADS": "4"},
    )
    placement = Placement(
        job=job,
        node_rank=1,
        master_addr="10.0.0.1",
        master_port=29500,
        restore_at_most=40,
        submitted_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    order = NodeOrder(node="n", epoch=1, generation=3, job="j", placement=placement)
    base = {"PATH": "/bin", "HOLDFAST_NATS_URL": "nats://secret", "HOLDFAST_NODE_DIR": "/n"}
    private = {f"HOLDFAST_NETWORK_ORDER_KEY{end}": "secret" for end in ("", "_FILE", "S", "S_FILE")}
    base |= private
    files = RankFiles(vault=tmp_path, ledger=tmp_path / "l", reports=tmp_path / "r", error=tmp_path / "e")
    found = rank_environment(base, order, placement, 3, files)
    assert not {"HOLDFAST_NATS_URL", *private} & found.keys()
    assert found["HOLDFAST_NODE_DIR"] == "/n"
    wanted = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    wanted |= {"TORCHELASTIC_RESTART_COUNT": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "PATH": "/bin"}
    wanted |= {"HOLDFAST_MESH": "dp=4", "HOLDFAST_RESTORE_STEP": "40", "HOLDFAST_JOB_DIR": "/d"}
    wanted |= {"HOLDFAST_JOB": "j", "HOLDFAST_GENERATION": "3", "HOLDFAST_JOB_SUBMITTED_MS": "1767225600000"}
    assert wanted.items() <= found.items()
    assert found["OMP_NUM_THREADS"] == "4"
    many = msgspec.structs.replace(placement, job=msgspec.structs.replace(job, env={}))
    alone = msgspec.structs.replace(many, job=msgspec.structs.replace(many.job, nproc_per_node=1, mesh=None))
    for held, shares in ((many, {}), (alone, {"HOLDFAST_SHARED_MACHINE": "1"})):
        assert rank_environment(base | shares, order, held, 1, files)["OMP_NUM_THREADS"] == "1"
    # A rank that has its machine to itself uses all of it, as under torchrun.
    assert "OMP_NUM_THREADS" not in rank_environment(base, order, alone, 1, files)
    assert found.keys() >= RESERVED
    assert "of another job" not in found.values()
    assert public_environment(base) == {"PATH": "/bin", "HOLDFAST_NODE_DIR": "/n"}
    assert (found["TORCHELASTIC_MAX_RESTARTS"], found["ROLE_NAME"]) == ("2147483647", "default")
    launch = Launch(run_id="42", role="trainer", max_restarts=3, signals="SIGTERM", virtual_local_rank=True)
    launched = msgspec.structs.replace(placement, job=msgspec.structs.replace(job, launch=launch))
    found = rank_environment(base | {"CUDA_VISIBLE_DEVICES": "4, 6"}, order, launched, 3, files)
    wanted = {"TORCHELASTIC_RUN_ID": "42", "ROLE_NAME": "trainer", "TORCHELASTIC_MAX_RESTARTS": "3"}
    wanted |= {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "6"}
    assert wanted.items() <= found.items()
    assert rank_environment(base, order, launched, 3, files)["CUDA_VISIBLE_DEVICES"] == "1"
    # What the caller hides stays hidden.
    for visible, device in (("4,6", "6"), ("4", ""), ("", "")):
        hidden = rank_environment(base | {"CUDA_VISIBLE_DEVICES": visible}, order, launched, 3, files)
        assert hidden["CUDA_VISIBLE_DEVICES"] == device
    anywhere = msgspec.structs.replace(placement, restore_at_most=None)
    found = rank_environment({"HOLDFAST_RESTORE_STEP": "0"}, order, anywhere, 3, files)
    assert "HOLDFAST_RESTORE_STEP" not in found, "it would cut at each restart what was trained since"


def test_variables_that_a_rank_cannot_be_given_are_left_out() -> None:
    base = {"": "x", "ODD": os.fsdecode(b"a\xff"), os.fsdecode(b"\xfe"): "x", "NAME": "Grüße"}
    assert public_environment(base) == {"NAME": "Grüße"}


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    data = framed(Attach(orphan_s=1.5)) * 3
    frames = Frames(commands, MESSAGE_BYTES_MAX)
    found = [each for index in range(len(data)) for each in frames.feed(data[index : index + 1])]
    assert found == [Attach(orphan_s=1.5)] * 3
    with pytest.raises(WireError):
        list(Frames(commands, MESSAGE_BYTES_MAX).feed(b"\xff" * 8))
    with pytest.raises(WireError):
        decode(reports, msgspec.msgpack.encode({"type": "attach"}))


HOOKED = """
import os, sys
os.environ["HOLDFAST_LEDGER"] = sys.argv[1]
os.environ["RANK"] = "0"
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.trainer import phases, step
from holdfast.trainer.hooks import install_hooks
install_hooks.install()
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import all_reduce
assert dist.all_reduce is all_reduce and all_reduce.__wrapped__
phases.bind(LedgerWriter(sys.argv[1], rank=0, generation=1))
reader = LedgerReader(sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert reader.snapshot().phase_name == "init"
model = torch.nn.Linear(2, 2)
main, side = torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())
for _ in range(3):
    dist.all_reduce(torch.zeros(1))
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    work.wait()
    main.step()
    side.step()
seen = reader.snapshot()
assert seen.steps_done == 3 and seen.step == 2, seen
assert seen.collective.entered == 9 and seen.collective.in_flight == 0, seen
assert seen.collective.name == "wait"
step(step=100, loss=torch.tensor(1.5), tokens=8)
main.step()
seen = reader.snapshot()
assert (seen.step, seen.loss, seen.tokens, seen.steps_done) == (100, 1.5, 8, 4), seen
if os.fork() == 0:
    step(step=7)
    os._exit(0)
os.wait()
assert reader.snapshot().step == 100
"""


def test_hooks_fill_the_ledger_of_a_script_that_knows_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOOKED, str(tmp_path / "ledger")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
