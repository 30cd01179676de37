"""`holdfast analyze`: what it reads, prints and refuses."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands.diagnosis.analyze import NO_SUSPECT, analyze
from holdfast.events.parts.traces import ProcessStacks
from tests.scenes import stacks as scenes
from tests.scenes.operation_traces import Job
from tests.scenes.stacks import Calls, process


def run(*args: object, given: str | None = None) -> Result:
    return CliRunner().invoke(analyze, [str(arg) for arg in args], input=given)


def said(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.stdout))


def as_text(one: ProcessStacks) -> str:
    lines = [f"Process {one.pid}: python train.py", "Python v3.11.9 (/usr/bin/python3.11)", ""]
    lines.append(f'Thread {one.pid} (idle): "MainThread"')
    lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in one.threads[0].frames]
    return "\n".join(lines) + "\n"


def at(rank: int) -> Calls:
    return scenes.DEADLOCK if rank == 5 else scenes.GRAD_SYNC


def dumps(folder: Path, ranks: int = 8) -> Path:
    for rank in range(ranks):
        (folder / f"rank-{rank}.txt").write_text(as_text(process(rank, at(rank))))
    return folder


def test_a_folder_of_stacks_in_json_and_in_words(tmp_path: Path) -> None:
    (dumps(tmp_path) / "README.md").write_text("how these were taken")
    result = run("--mesh", "dp=2,tp=4", "--ranks-per-node", 4, tmp_path)
    answer = said(result)
    assert (result.exit_code, answer["verdict"], answer["ranks"], answer["nodes"], answer["scope"]) == (
        0,
        "hang",
        [5],
        ["1"],
        "machine",
    )
    assert len(answer["read"]) == 8
    assert answer["unread"] == []
    words = run("--text", "--ranks-per-node", 4, tmp_path).stdout
    assert "suspects    rank 5\nmachines    machine 1\n" in words
    assert "_guarded (my_job/hooks.py:12)" in words


def test_one_broken_file_harms_no_other(tmp_path: Path) -> None:
    dumps(tmp_path)
    (tmp_path / "rank-0.txt").write_text("")
    (tmp_path / "rank-1.json").write_text('[{"thread_id": 1, "frames": [')
    (tmp_path / "rank-2.pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "rank-3.txt.gz").write_bytes(gzip.compress(b"x" * 99)[:20])
    answer = said(run(tmp_path))
    assert answer["ranks"] == [5]
    errors = {Path(one["file"]).name: one["error"] for one in answer["unread"]}
    assert set(errors) == {"rank-0.txt", "rank-1.json", "rank-2.pickle", "rank-3.txt.gz"}
    assert errors["rank-0.txt"] == "empty"
    assert "cut short" in errors["rank-1.json"]


def test_nobody_is_named_without_proof(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(
        json.dumps({str(rank): as_text(process(rank, scenes.GRAD_SYNC)) for rank in range(8)})
    )
    result = run(tmp_path / "all.json")
    assert (result.exit_code, said(result)["verdict"], said(result)["ranks"]) == (NO_SUSPECT, "unknown", [])


def test_the_stacks_of_holdfasts_own_tracer_on_standard_input() -> None:
    stacks = [process(rank, at(rank), node=f"n{rank // 2}") for rank in range(8)]
    answer = said(run("-", given=msgspec.json.encode(stacks).decode()))
    assert (answer["ranks"], answer["nodes"], answer["read"][0]["format"]) == ([5], ["n2"], "process_stacks")


def test_json_documents_after_each_other(tmp_path: Path) -> None:
    thread = {"thread_id": 1, "thread_name": "MainThread", "active": False, "owns_gil": False}
    for rank in range(4):
        calls = [{"name": name, "filename": file, "line": line} for name, file, line in at(rank + 2)]
        one = json.dumps([thread | {"pid": rank, "frames": calls}], indent=2)
        (tmp_path / f"rank-{rank}.json").write_text(f"{one}\n{one.replace(str(calls), '[]')}\n")
    assert said(run(tmp_path))["ranks"] == [3]


def test_stacks_and_collectives_make_one_verdict(tmp_path: Path) -> None:
    dumps(tmp_path, 4)
    for rank in range(4):
        (tmp_path / f"rank-{rank}.txt").write_text(as_text(process(rank, scenes.GRAD_SYNC)))
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(flight(rank, 1 if rank == 2 else 2)))
    answer = said(run(tmp_path))
    assert answer["ranks"] == [2]
    assert answer["stacks"] and answer["collectives"]


def flight(rank: int, begun: int) -> dict[str, Any]:
    """What the flight recorder of a rank of four has that began so many all-reduces, the last without an end."""
    entry = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
    }
    sizes = {"input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    entries = [
        entry
        | sizes
        | {
            "collective_seq_id": number,
            "op_id": number,
            "state": "completed" if number < 2 else "started",
            "time_created_ns": number * 1000,
            "retired": number < 2,
            "frames": [],
        }
        for number in range(1, begun + 1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    status = {
        "0": {"last_enqueued_collective": begun, "last_started_collective": begun, "last_completed_collective": 1}
    }
    return {"version": "2.9", "rank": rank, "pg_config": config, "pg_status": status, "entries": entries}


def test_timings_of_operations(tmp_path: Path) -> None:
    trace = Job(slow={(1, 2): (2.5, 2.5)}).trace()
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(trace))
    result = run("--ranks-per-node", 2, tmp_path)
    answer = said(result)
    assert (result.exit_code, answer["verdict"], answer["scope"], answer["read"][0]["format"]) == (
        0,
        "slowness",
        "machine",
        "operations",
    )
    assert answer["ranks"] == answer["slowness"][0]["evict"] == [18, 19]
    assert answer["nodes"] == ["9"]
    assert "evict       18, 19" in run("--text", tmp_path).stdout


def test_timings_in_a_zip_with_their_meta_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("trace-X.csv", Job(dp=4, pp=2, slow={(1, 0): (2.5, 2.5)}).trace())
        archive.writestr("meta-X.yaml", "dp_size: 4\npp_size: 2\ntp_size: 1\n")
    answer = said(run(tmp_path))
    assert [one["format"] for one in answer["read"]] == ["operations", "operations_meta"]
    assert answer["ranks"] == [2]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("meta-X.yaml", b"dp_size: 4\npp_size: 2\n", "is a meta file: give the trace itself as well"),
        ("trace.csv.gz", gzip.compress(bytes(9000))[:-9], "it was cut short; copy it again"),
        ("trace.zip", b"PK\x03\x04 and then nothing", "zip archive that cannot be read"),
        ("trace.csv", b"dp_rank,stage,step,optype,start_ts,duration\n0,0,0,wait,0,1\n", "neither forward-compute"),
    ],
    ids=["meta", "gzip", "zip", "other operations"],
)
def test_timings_that_say_nothing_say_why(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    result = run(tmp_path)
    assert (result.exit_code, result.stdout, says in result.stderr.replace("\n", " ")) == (2, "", True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--mesh", "pp=2"), "mesh pp=2 has 2 ranks, yet there is a dump of rank 7"),
        (("--mesh", "dp=8", "--ranks-per-node", 3), "3 ranks per node do not divide"),
        (("--mesh", "dp:8"), "write for example pp=2,dp=2,tp=2"),
        (("--order", "tp-dp"), "give --mesh as well"),
        (("--mesh", "dp=8", "--order", "tp-pp"), "no place in order tp-pp for dp"),
        (("--text", "--json"), "exclude each other"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, args: tuple[object, ...], message: str) -> None:
    result = run(*args, dumps(tmp_path))
    assert (result.exit_code, message in result.stderr.replace("\n", " ")) == (2, True)


def test_what_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    result = run(tmp_path / "train.log")
    assert (result.exit_code, "no stacks of py-spy" in result.stderr) == (2, True)
    assert "is not there" in run(tmp_path / "nothing").stderr


def test_megatrons_order(tmp_path: Path) -> None:
    answer = said(run("--mesh", "tp=2,pp=2,dp=2", "--order", "tp-cp-ep-dp-pp", "--ranks-per-node", 2, dumps(tmp_path)))
    assert answer["nodes"] == ["2"]
