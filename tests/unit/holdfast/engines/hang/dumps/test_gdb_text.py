"""Reader of native stacks: what gdb, pstack and py-bt print, of one process or many."""

from __future__ import annotations

from holdfast.engines.hang.dumps.dump_files import IdentifiedProcess, processes_of, read_stacks_text
from holdfast.engines.hang.dumps.gdb_text import is_gdb_text, read_gdb_text
from holdfast.engines.hang.stacks.stack_groups import StackVerdict, judge_stacks

HELPER = """\
Thread 2 (Thread 0x7f11aa (LWP {helper}) "pt_autograd_0"):
#0  0x00007f11 in epoll_wait () from /lib64/libc.so.6
#1  0x00007f12 in start_thread () from /lib64/libc.so.6

"""
MAIN = 'Thread 1 (Thread 0x7f22bb (LWP {pid}) "python3"):\n'
IN_ALL_REDUCE = """\
#0  0x00007f31 in sched_yield () from /lib64/libc.so.6
#1  0x00007f32 in ncclCommInitRankConfig (comm=0x55, nranks=4, id=<optimized out>) at init.cc:2011
#2  0x00007f33 in ?? ()
#3  _PyEval_EvalFrameDefault (tstate=0x1, frame=0x2, throwflag=0) at Python/ceval.c:4921
"""
IN_FILE = """\
#0  0x00007f41 in read () from /lib64/libpthread.so.0
#1  0x00007f42 in _Py_read (fd=9, buf=0x5, count=4096) at Python/fileutils.c:1700
"""
ON_DEVICE = """\
#0  0x00007f51 in ?? () from /lib64/libcuda.so.1
#1  0x00007f52 in cudaStreamSynchronize () from /opt/cuda/lib64/libcudart.so.12
#2  0x00007f53 in at::native::item(at::Tensor const&) () from /x/libtorch_cpu.so
"""
IN_BACKWARD = """\
#0  0x00007f61 in pthread_cond_wait () from /lib64/libc.so.6
#1  0x00007f62 in torch::autograd::Engine::execute_with_graph_task(int) () from /x/libtorch_cpu.so
"""


def dump_of(pid: int, main: str) -> str:
    return HELPER.format(helper=pid + 1) + MAIN.format(pid=pid) + main


def ranks(*mains: str) -> list[IdentifiedProcess]:
    found = []
    for rank, main in enumerate(mains):
        read = read_stacks_text(dump_of(700 + 10 * rank, main), f"rank_{rank}.txt")
        assert read is not None and read[0] == "gdb"
        found += read[1]
    return found


def verdict_on(*mains: str) -> StackVerdict:
    stacks, _ = processes_of(ranks(*mains), None)
    return judge_stacks(stacks, None, None)


def test_threads_of_a_process() -> None:
    process = read_gdb_text(f"[New LWP 8]\n0x00007f in read ()\n\n{dump_of(7, IN_ALL_REDUCE)}")[0]
    assert process.pid == 7
    assert [thread.is_main for thread in process.threads] == [False, True]
    assert [frame.function for frame in process.threads[1].frames] == [
        "sched_yield",
        "ncclCommInitRankConfig",
        "_PyEval_EvalFrameDefault",
    ]


def test_processes_after_each_other() -> None:
    """The number of threads begins again, or does not fall, where the next process begins."""
    pids = [one.pid for one in read_gdb_text(dump_of(7, IN_FILE) + dump_of(20, IN_FILE))]
    assert pids == [7, 20]
    single = MAIN.format(pid=7) + IN_FILE + MAIN.format(pid=20) + IN_FILE
    assert [one.pid for one in read_gdb_text(single)] == [7, 20]


def test_labels_keep_interleaved_ranks_apart() -> None:
    each = [dump_of(70 + rank, main).splitlines() for rank, main in enumerate((IN_FILE, IN_ALL_REDUCE))]
    longest = max(map(len, each))
    lines = [f"{rank}: {each[rank][at]}" for at in range(longest) for rank in range(2) if at < len(each[rank])]
    found = read_gdb_text("\n".join(lines))
    assert [(one.label, one.pid, len(one.threads)) for one in found] == [("0", 70, 2), ("1", 71, 2)]


def test_a_backtrace_without_a_thread_is_the_main_threads() -> None:
    found = read_gdb_text(IN_FILE + "(gdb) detach\n" + IN_ALL_REDUCE)
    assert [[thread.is_main for thread in one.threads] for one in found] == [[True], [True]]


def test_python_frames() -> None:
    text = "#12 Frame 0x55aa, for file /job/train.py, line 77, in step (model=<Net at 0x1>)\n"
    frame = read_gdb_text(text)[0].threads[0].frames[0]
    assert (frame.function, frame.file, frame.line) == ("step", "/job/train.py", 77)


def test_no_names_is_no_stack() -> None:
    process = read_gdb_text("#0  0x00007f33 in ?? ()\n#1  0x00007f34 in ?? () from /lib64/libcuda.so.1\n")[0]
    assert not process.threads
    assert process.unread == "the dump has no frames with names"


def test_other_texts_are_none() -> None:
    for text in ("#1 of 3 retries (waiting)", "see issue #12 (open)", "Thread 3 (idle): worker", "", "# 0 x (y)"):
        assert not is_gdb_text(text), text


def test_the_rank_in_a_file_is_blamed() -> None:
    blamed = verdict_on(IN_ALL_REDUCE, IN_ALL_REDUCE, IN_FILE, IN_ALL_REDUCE).blamed
    assert [one.ranks for one in blamed] == [(2,)]
    assert "read < _Py_read" in blamed[0].evidence[0]


def test_ranks_that_all_wait_are_innocent() -> None:
    """Compiled code differs between ranks that wait for the same thing."""
    assert not verdict_on(ON_DEVICE, IN_BACKWARD, ON_DEVICE, ON_DEVICE).blamed
    assert not verdict_on(IN_ALL_REDUCE, ON_DEVICE, IN_ALL_REDUCE, IN_ALL_REDUCE).blamed
    assert not verdict_on(*[IN_ALL_REDUCE] * 4).blamed
