"""Stacks made comparable between nodes, what they show a process to be doing, and what it is for."""

from __future__ import annotations

import pytest

from holdfast.engines.hang.dumps.process_kinds import kind_of
from holdfast.engines.hang.stacks.activities import activity_of
from holdfast.engines.hang.stacks.frames import normalised, symbol_of
from holdfast.events.parts.traces import Frame, ThreadStack

LOOP = ("train_step (train.py:40)", "<module> (train.py:90)")


def frames(*calls: str) -> tuple[Frame, ...]:
    found = []
    for call in calls:
        function, _, rest = call.rpartition(" (")
        file, _, line = rest[:-1].partition(":")
        found.append(Frame(function=function, file=file, line=int(line or 0)))
    return tuple(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step (/data/node7/job/train.py:3)", "step (train.py:3)"),
        (
            "all_reduce (/opt/a/site-packages/torch/distributed/distributed_c10d.py:3)",
            "all_reduce (distributed_c10d.py:3)",
        ),
        ("wait (/usr/lib/python3.11/threading.py:3)", "Condition.wait (threading.py:3)"),
        ("wrapper.<locals>.inner (a.py:3)", "inner (a.py:3)"),
        ("torch_dynamo_resume_in_forward_at_91 (m.py:3)", "forward (m.py:3)"),
        ("call (/tmp/torchinductor_ml/ab/cab12.py:3)", "call (/tmp/torchinductor_root/xy/cxy34.py:3)"),
        ("forward (<eval_with_key>.12:3)", "forward (<eval_with_key>.7:3)"),
        ("f (/tmp/ipykernel_71/331.py:3)", "f (<ipython-input-4-ab>:3)"),
    ],
)
def test_the_same_call_on_two_nodes(one: str, other: str) -> None:
    assert normalised(frames(one)).places == normalised(frames(other)).places


def test_wrappers_native_frames_and_the_parent_of_a_fork_are_left_out() -> None:
    stack = normalised(
        frames(
            "0x7ff775ca3f16 (libc.so.6)",
            "c10d::Work::wait (libtorch_cpu.so)",
            "all_reduce (torch/distributed/distributed_c10d.py:1)",
            "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
            "at::native::add (libtorch_cpu.so)",
            "work (job.py:2)",
            "BaseProcess._bootstrap (multiprocessing/process.py:314)",
            "main (train.py:25)",
        )
    )
    assert stack.places == ("all_reduce (distributed_c10d.py)", "work (job.py)")
    assert stack.native == ("c10d::Work::wait",)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN4c10d4Work4waitENSt6chrono8durationIlEE", "c10d::Work::wait"),
        ("_ZNK2at6Tensor4itemEv", "at::Tensor::item"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("void at::native::kernel<f, g<int> >(at::Tensor const&)", "at::native::kernel"),
        ("ncclLaunch.constprop.0", "ncclLaunch"),
        ("0x7ff775ca3f16", ""),
    ],
)
def test_symbols(symbol: str, name: str) -> None:
    assert symbol_of(symbol) == name


@pytest.mark.parametrize(
    ("calls", "doing", "what"),
    [
        (("all_reduce (torch/distributed/distributed_c10d.py:1)",), "others", "all_reduce"),
        (("wait (threading.py:1)", "barrier (torch/distributed/distributed_c10d.py:1)"), "others", "barrier"),
        (("_communicate (p2p_communication.py:1)",), "others", "_communicate"),
        (("synchronize (torch/cuda/__init__.py:1)",), "others", "the device"),
        (("allreduce_gradients (my_ddp.py:1)",), "others", "allreduce_gradients"),
        (("ncclGroupEnd (libnccl.so.2)", "f (job.py:1)"), "others", "a collective"),
        (("cudaStreamSynchronize (libcudart.so)", "f (job.py:1)"), "others", "the device"),
        (("wait (threading.py:1)", "f (job.py:1)"), "own", "a lock, queue or thread"),
        (("clock_nanosleep (libc.so.6)", "f (job.py:1)"), "own", "a sleep"),
        (("pread64 (libc.so.6)", "f (job.py:1)"), "own", "a file"),
        (("read (a.py:1)", "__next__ (torch/utils/data/dataloader.py:1)"), "own", "its data"),
        (("write (io.py:1)", "_save (torch/serialization.py:1)"), "own", "a checkpoint"),
        # The planner of a checkpoint runs its caller's code inside of what is called like a collective.
        (
            ("write_data (filesystem.py:1)", "all_reduce (torch/distributed/checkpoint/utils.py:1)"),
            "own",
            "a checkpoint",
        ),
        (("forward (m.py:1)", "checkpoint (torch/utils/checkpoint.py:1)"), "unclear", ""),
        (("__getitem__ (torch/nn/modules/container.py:1)", "forward (m.py:1)"), "unclear", ""),
        (("run (triton/runtime/jit.py:1)", "forward (m.py:1)"), "unclear", ""),
        (("_engine_run_backward (torch/autograd/graph.py:1)",), "unclear", "backward"),
        (("forward (m.py:1)", "forward_step (schedules.py:1)"), "unclear", ""),
    ],
)
def test_what_a_stack_shows(calls: tuple[str, ...], doing: str, what: str) -> None:
    activity = activity_of(normalised(frames(*calls, *LOOP)))
    assert (activity.doing, activity.what) == (doing, what)


@pytest.mark.parametrize(
    ("command", "calls", "kind"),
    [
        ("python train.py", LOOP, "rank"),
        ("python -m torch.distributed.run train.py", ("_monitor_workers (torch/elastic/x.py:1)",), "other"),
        ("/usr/bin/python /usr/bin/torchrun --nnodes 2 train.py", ("poll (popen.py:1)",), "other"),
        ("python train.py", ("get (queues.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:1)"), "data_loader"),
        ("pt_data_worker_0", ("read (x.py:1)",), "data_loader"),
        (
            "python train.py",
            ("write (filesystem_async.py:1)", "_bootstrap (multiprocessing/process.py:1)", *LOOP),
            "checkpoint",
        ),
        ("python ckpt_writer.py", ("write (io.py:1)",), "checkpoint"),
        ("python -c from multiprocessing.resource_tracker import main", ("main (resource_tracker.py:1)",), "other"),
        # A rank that saves a checkpoint itself stays one.
        ("python train.py --save ckpt", ("write (filesystem_async.py:1)", *LOOP), "rank"),
        # Forked from a rank: below its birth are the calls of its parent.
        (
            "python train.py",
            ("get (q.py:1)", "_bootstrap (multiprocessing/process.py:1)", "_worker_loop (w.py:1)"),
            "rank",
        ),
    ],
)
def test_what_a_process_is_for(command: str, calls: tuple[str, ...], kind: str) -> None:
    assert kind_of(command, (ThreadStack(frames=frames(*calls), is_main=True),)) == kind
