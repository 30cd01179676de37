"""The end of a log: stacks below an error do not push it out, and everything else is cut as it is."""

from __future__ import annotations

import time

import pytest

from holdfast.engines.log_end import end_of_log, without_stacks

ERROR = (
    "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: launch failure\n"
)
FRAMES = "".join(f'  File "/env/lib/python3.11/site-packages/deep/{n}.py", line {n} in step_{n}\n' for n in range(40))
OTHERS = "".join(f"Thread 0x00007f0000{n:06x} (most recent call first):\n{FRAMES}\n" for n in range(9))
OWN = f"Current thread 0x00007fbd4be48b80 (most recent call first):\n{FRAMES}\n"
MODULES = f"Extension modules: {', '.join(f'torch._C._part_{n}' for n in range(200))} (total: 200)\n"
PYTHON = f"Fatal Python error: Aborted\n\n{OTHERS}{OWN}{MODULES}"


@pytest.mark.parametrize(
    "stack",
    [
        PYTHON,
        "".join(f"frame #{n}: c10::detail::f{n}() + 0x{n:x} (0x7f12{n:08x} in /env/libc10.so)\n" for n in range(99)),
        "".join(f"#{n}  0x00007f12{n:08x} in abort () from /lib/x86_64-linux-gnu/libc.so.6\n" for n in range(99)),
        "".join(f"    @     0x7f12{n:08x}  (unknown)\n" for n in range(200)),
        "".join(f"[node-1:4711] [{n:2}] /env/lib/libtorch_cuda.so(+0x{n:x})[0x7f12{n:08x}]\n" for n in range(99)),
        "".join(f"\tat org.apache.hadoop.hdfs.DFSClient.open(DFSClient.java:{n})\n" for n in range(99)),
    ],
    ids=["python", "torch", "gdb", "glog", "openmpi", "java"],
)
def test_stacks_do_not_push_out_the_error_above_them(stack: str) -> None:
    text = "step 1\n" * 1000 + ERROR + stack
    assert len(stack) > 4000
    assert ERROR in end_of_log(text, 4000)


def test_of_the_thread_that_ended_the_process_the_innermost_frames_are_kept() -> None:
    kept = without_stacks(ERROR + PYTHON)
    assert kept.startswith(ERROR + "Fatal Python error: Aborted\n")
    assert [line.rpartition(" ")[2] for line in kept.splitlines() if "File" in line] == [f"step_{n}" for n in range(8)]
    assert "Current thread" in kept and "\nThread" not in kept and "Extension modules" not in kept


def test_a_log_that_is_short_enough_keeps_its_stacks() -> None:
    assert end_of_log(ERROR + OWN, len(ERROR + OWN)) == ERROR + OWN


def test_tracebacks_and_output_are_no_stacks() -> None:
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 41, in <module>\n    fetch(url)\n'
        "ValueError: frame 7 at 0x10\n#12 of 40: loss 0.1\nmeet me at home (later)\n"
    )
    assert without_stacks(text) == text
    assert end_of_log(text, 9) == "e (later)\n"[-9:]


@pytest.mark.parametrize("piece", ["(", "(+0x", "(" * 1_999 + "\n"], ids=["brackets", "offsets", "lines"])
def test_no_output_takes_longer_than_its_length(piece: str) -> None:
    """The zygote reads the ends of its ranks' logs, and does nothing else meanwhile."""
    text = piece * (131_072 // len(piece))
    began = time.process_time()
    end_of_log(text, 16_384)
    assert time.process_time() - began < 4
