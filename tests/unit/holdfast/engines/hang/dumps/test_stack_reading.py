"""Readers of stacks: what py-spy and faulthandler print, of one process or many, labelled or not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.hang.dumps.dump_files import UnreadableDump, processes_of, read_stacks_json, read_stacks_text
from holdfast.engines.hang.dumps.faulthandler_text import read_fault_text
from holdfast.engines.hang.dumps.py_spy_text import is_py_spy_text, read_py_spy_text
from holdfast.events.parts.traces import Frame, ProcessStacks

TWO_PROCESSES = """\
Process 71: /opt/venv/bin/python -u train.py --lr 1e-4
Python v3.11.9 (/usr/bin/python3.11)

Thread 71 (idle): "MainThread"
    pthread_cond_wait (libc.so.6)
    c10d::Work::wait (libtorch_cpu.so)
    all_reduce (torch/distributed/distributed_c10d.py:2801)
        Arguments:
            tensor: <Tensor at 0x7ff0>
            text: "Thread 5 (idle)
        Locals:
            work: <Work at 0x7ff1>
            call: step (train.py:3)
    step (train.py:40)
    <module> (train.py:90)
Thread 90 (active)
Thread 0x7F01AB (active+gil): "pin (memory)"
    _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:54)

--------------------------------------------------------------------------------
Process 85: /opt/venv/bin/python -u train.py --lr 1e-4
Python v3.11.9 (/usr/bin/python3.11)
Parent Process 71: /opt/venv/bin/python -u train.py --lr 1e-4

Thread 85 (idle): "MainThread"
    Queue.get (multiprocessing/queues.py:113)
    _worker_loop (torch/utils/data/_utils/worker.py:275)
    BaseProcess._bootstrap (multiprocessing/process.py:314)
    step (train.py:30)
"""


def text_of(rank: int) -> str:
    head = f'Process {100 + rank}: python train.py\nThread {100 + rank} (idle): "MainThread"\n'
    return f"{head}    f{rank} (train.py:{rank + 1})\n"


def threads_of(rank: int) -> list[dict[str, Any]]:
    frame = {"name": f"f{rank}", "filename": "/job/train.py", "short_filename": "train.py", "line": 1, "locals": None}
    return [
        {
            "pid": 100 + rank,
            "thread_id": 5,
            "thread_name": "MainThread",
            "os_thread_id": 100 + rank,
            "active": False,
            "owns_gil": rank == 1,
            "frames": [frame],
            "process_info": None,
        }
    ]


def by_rank(processes: list[ProcessStacks]) -> dict[int | None, str]:
    return {process.rank: process.threads[0].frames[0].function for process in processes}


def read_texts(files: dict[str, str], ranks_per_node: int | None = None) -> list[ProcessStacks]:
    dumped = [one for name, text in files.items() for one in (read_stacks_text(text, name) or ("", []))[1]]
    return processes_of(dumped, ranks_per_node)[0]


def test_processes_threads_and_native_frames_without_variables() -> None:
    first, child = read_py_spy_text(TWO_PROCESSES)
    assert (first.pid, child.pid, child.parent_pid) == (71, 85, 71)
    assert first.command == "/opt/venv/bin/python -u train.py --lr 1e-4"
    main, pin = first.threads
    assert (main.is_main, main.is_idle, main.holds_gil, pin.is_idle, pin.holds_gil) == (True, True, False, False, True)
    assert [(frame.function, frame.file, frame.line) for frame in main.frames] == [
        ("pthread_cond_wait", "libc.so.6", 0),
        ("c10d::Work::wait", "libtorch_cpu.so", 0),
        ("all_reduce", "torch/distributed/distributed_c10d.py", 2801),
        ("step", "train.py", 40),
        ("<module>", "train.py", 90),
    ]


def test_a_stack_that_stands_for_many_ranks_belongs_to_none() -> None:
    one = TWO_PROCESSES.partition("\nProcess 85")[0]
    assert [process.kind for process in read_texts({"ranks_0-126.txt": one})] == ["other"]
    assert [process.rank for process in read_texts({"ranks/rank-3-4711.txt": one})] == [3]


def test_a_child_belongs_to_the_rank_of_its_parent() -> None:
    processes = read_texts({"dumps/rank-12.txt": TWO_PROCESSES})
    assert [(process.kind, process.rank) for process in processes] == [("rank", 12), ("data_loader", 12)]


@pytest.mark.parametrize(
    ("prefix", "rank"), [("3: ", 3), ("[rank3]: ", 3), ("[3] ", 3), ("rank_3: ", 3), ("node-3: ", None)]
)
def test_lines_that_a_launcher_labels(prefix: str, rank: int | None) -> None:
    text = "".join(f"{prefix}{line}".rstrip() + "\n" for line in TWO_PROCESSES.splitlines())
    processes = read_texts({"srun.out": text})
    assert [process.rank for process in processes] == [rank, rank]
    assert len(processes[0].threads[0].frames) == 5


def test_an_old_py_spy_without_names_of_threads() -> None:
    one = "Stack dump for ml     {}  0.1 ray_worker\nThread 0x7F4AA36D9700 (active)\n\t step (train.py:7)\n\n"
    processes = read_py_spy_text(one.format(4711) + one.format(4712))
    assert [(process.pid, process.threads[0].frames[0].function) for process in processes] == [
        (4711, "step"),
        (4712, "step"),
    ]


def test_what_py_spy_could_not_read_says_why() -> None:
    (process,) = read_py_spy_text("Process 9: python train.py\nError: Permission denied (os error 1)\n")
    assert (process.pid, process.unread) == (9, "Error: Permission denied (os error 1)")


@pytest.mark.parametrize(
    ("name", "rank", "node"),
    [
        ("rank-12.txt", 12, ""),
        ("rank12.json", 12, ""),
        ("worker-3/rank_7.dump", 7, "worker-3"),
        ("12.txt", 12, ""),
        ("node7_rank3.txt.gz", 3, "node7"),
        ("job/global_rank_17.stack", 17, ""),
        ("ip-10-0-3-7/rank0003.txt", 3, "ip-10-0-3-7"),
        ("rank-3/py-spy.txt", 3, ""),
        ("local_rank3.txt", None, ""),
    ],
)
def test_names_tell_rank_and_node(name: str, rank: int | None, node: str) -> None:
    (process,) = read_texts({name: text_of(0)})
    assert (process.rank, process.node) == (rank, node)


def test_files_that_differ_in_a_number_only() -> None:
    assert by_rank(read_texts({f"worker-{rank}.txt": text_of(rank) for rank in range(4)})) == {
        rank: f"f{rank}" for rank in range(4)
    }


def test_processes_of_a_node_are_its_ranks_in_order() -> None:
    files = {f"host-{node}.txt": text_of(2 * node + 1) + text_of(2 * node) for node in range(2)}
    assert by_rank(read_texts(files, 2)) == {0: "f0", 1: "f1", 2: "f2", 3: "f3"}
    assert set(by_rank(read_texts(files))) == {None}


def test_a_local_rank_on_the_command_line() -> None:
    files = {
        f"host-{node}.txt": "".join(
            text_of(2 * node + local).replace("train.py\n", f"train.py --local_rank={local}\n") for local in (0, 1)
        )
        for node in (1, 2)
    }
    assert by_rank(read_texts(files, 2)) == {0: "f2", 1: "f3", 2: "f4", 3: "f5"}


DOCUMENTS: list[Any] = [
    {str(rank): threads_of(rank) for rank in range(3)},
    {f"rank_{rank}": text_of(rank) for rank in range(3)},
    {"job": "a", "dumps": {str(rank): threads_of(rank) for rank in range(3)}},
    [{"rank": rank, "host": "n1", "stack": text_of(rank)} for rank in range(3)],
    [{"rank": rank, "threads": threads_of(rank)} for rank in range(3)],
    {"n1": {str(rank): {"pid": 7, "py_spy": text_of(rank)} for rank in range(3)}},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_json_of_many_ranks(document: Any) -> None:
    read = read_stacks_json(document, "all.json")
    assert read
    assert by_rank(processes_of(read[1], None)[0]) == {0: "f0", 1: "f1", 2: "f2"}


def test_json_of_one_process() -> None:
    read = read_stacks_json(threads_of(1), "rank1.json")
    assert read
    (process,) = processes_of(read[1], None)[0]
    assert (process.rank, process.pid, process.threads[0].holds_gil, process.threads[0].is_main) == (1, 101, True, True)
    assert process.threads[0].frames == (Frame(function="f1", file="/job/train.py", line=1),)


def test_json_that_is_something_else() -> None:
    assert read_stacks_json({"loss": [1.0, 2.0], "note": "rank 3"}, "metrics.json") is None
    assert read_stacks_json([1, 2], "x.json") is None
    with pytest.raises(UnreadableDump, match=r"rank1.json.*frames"):
        read_stacks_json([{"thread_id": 1, "frames": [{"line": "x"}]}], "rank1.json")


FAULT = """\
Timeout (0:05:00)!
Thread 0x00007ff754c256c0 [QueueFeeder] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007ff77641bb80 (most recent call first):
  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 2801 in all_reduce
  File "/job/train.py", line 90 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x37 [0x55f]
"""


def test_faulthandler_marks_no_main_thread_but_names_it_last() -> None:
    (process,) = read_fault_text(FAULT)
    feeder, main = process.threads
    assert (feeder.name, feeder.is_main, main.is_main) == ("QueueFeeder", False, True)
    assert [frame.function for frame in main.frames] == ["all_reduce", "<module>"]


def test_faulthandler_of_many_ranks_between_each_other() -> None:
    lines = [
        line
        for pair in zip(FAULT.splitlines(), FAULT.splitlines(), strict=True)
        for line in zip((0, 1), pair, strict=True)
    ]
    text = "\n".join(f"[rank{rank}]: {line}" for rank, line in lines)
    processes = read_texts({"job.err": text})
    assert {process.rank: len(process.threads[1].frames) for process in processes} == {0: 2, 1: 2}


def test_one_file_with_one_dump_after_another() -> None:
    assert len(read_fault_text(FAULT + FAULT)) == 2


def test_a_log_is_no_dump() -> None:
    assert not is_py_spy_text("step 3 loss 1.0\nProcess group 0 is ready\nThread pool (4)\n")
    assert read_stacks_text("step 3 loss 1.0\n", "train.log") is None


@pytest.mark.parametrize(
    "head", ["=== Rank {} on node-1 ===", "==> dumps/rank-{}.txt <==", "# rank: {}", "rank {}", "--- {}"]
)
def test_sections_of_one_file(head: str) -> None:
    text = "".join(f"{head.format(rank)}\n{text_of(rank)}\n" for rank in range(3))
    assert by_rank(read_texts({"all.txt": text})) == {0: "f0", 1: "f1", 2: "f2"}
    faults = "".join(f"{head.format(rank)}\n{FAULT}\n" for rank in range(3))
    processes = read_texts({"all.txt": faults})
    assert {process.rank: len(process.threads) for process in processes} == {0: 2, 1: 2, 2: 2}


def test_a_folder_that_is_named_after_something_else() -> None:
    files = {f"rank12_hangs/{rank}.txt": text_of(rank) for rank in range(3)}
    assert by_rank(read_texts(files)) == {0: "f0", 1: "f1", 2: "f2"}
    files = {f"rank12_hangs/host-{rank}.txt": text_of(rank) for rank in range(3)}
    assert by_rank(read_texts(files)) == {0: "f0", 1: "f1", 2: "f2"}


def test_a_log_that_names_ranks_begins_no_section() -> None:
    log = "rank 0: loss 2.0\n[rank 5] step 7\nsaved\n"
    assert read_texts({"rank-3.err": log + text_of(3)})[0].rank == 3
    assert read_texts({"rank-3.err": log + FAULT})[0].rank == 3


def test_the_rank_of_an_adapter_is_no_rank() -> None:
    assert read_texts({"lora_rank8.txt": text_of(0)})[0].rank is None


def test_numbers_that_several_machines_have_count_within_a_machine() -> None:
    files = {f"host-{number // 2}/{number % 2}.txt": text_of(number) for number in (2, 1, 3, 0)}
    assert by_rank(read_texts(files, 2)) == by_rank(read_texts({f"{rank}.txt": text_of(rank) for rank in range(4)}))
    assert {process.rank for process in read_texts(files)} == {None}


@pytest.mark.parametrize(
    "text",
    [
        "RANK=3\nLOCAL_RANK=1\nWORLD_SIZE=8\n" + text_of(3),
        text_of(3).replace("python", "env RANK=3 python", 1),
        "".join(f"2026-01-01T00:00:00.5Z {line}\n" for line in ("rank 3", *text_of(3).splitlines())),
    ],
)
def test_the_environment_and_times_before_lines(text: str) -> None:
    assert [process.rank for process in read_texts({"out-77.log": text, "out-91.log": text_of(1)})][:1] == [3]
