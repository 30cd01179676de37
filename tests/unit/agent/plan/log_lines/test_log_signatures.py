"""Lines of a living rank's output that show trouble, found cheaply, told once and then counted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.symptoms import TABLE_ONE
from holdfast_agent.plan.log_lines.log_alerts import LINES_MAX, REPEAT_AFTER_S, REPEAT_MAX_S, LogAlerts
from holdfast_agent.plan.log_lines.log_signatures import (
    ANCHORS,
    GATHERED_BYTES,
    GATHERED_S,
    LINE_BYTES_MAX,
    LOOKS_A_SECOND_MAX,
    Scanner,
    Signature,
)

EXAMPLES = [
    ("[rank3]:[E1121 23:53:01.2 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, Timeout(ms)=600000)", "nccl_timeout", "job_hang"),
    ("node7:412:903 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4791> with "
     "status=12 opcode=0 len=0 vendor err 129", "infiniband_error", "infiniband_error"),
    ("node7:412:903 [2] include/socket.h:403 NCCL WARN Connect to 10.0.0.9<4791> failed", "nccl_error", ""),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.", "xid_lost", "gpu_unavailable"),
    ("NVRM: Xid (PCI:0000:1a:00): 94, pid=1234, name=python, Contained: SM", "xid_memory", "gpu_memory_error"),
    ("NVRM: Xid (PCI:0000:1a:00): 31, pid=1234, Ch 00000008, MMU Fault", "xid", "cuda_error"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error", "cuda_error"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_memory_error", "gpu_memory_error"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_error", "cuda_error"),
    ("RuntimeError: HIP error: unspecified launch failure", "cuda_error", "cuda_error"),
    ("HW Exception by GPU node-7 (Agent handle: 0x5c01) reason :GPU Hang", "cuda_error", "cuda_error"),
    ("RuntimeError: a.ts:25 NPU function error: aclrtSynchronize, error code is 507035", "cuda_error", "cuda_error"),
    ("RuntimeError: No CUDA GPUs are available", "gpu_unavailable", "gpu_unavailable"),
    ("OSError: [Errno 28] No space left on device: '/ckpt/step-100'", "disk_full", "insufficient_disk_space"),
    ("tee: /logs/a: No space left on device", "disk_full", "insufficient_disk_space"),
    ("OSError: [Errno 116] Stale file handle: '/data/shard-3'", "file_system", "filesystem_mount"),
    ("OSError: [Errno 5] Input/output error: '/data/shard-3'", "disk_fault", "disk_fault"),
    ("OSError: [Errno 30] Read-only file system: '/ckpt/a'", "disk_fault", "disk_fault"),
    ("RuntimeError: [enforce fail] DefaultCPUAllocator: OSError: Cannot allocate memory", "memory", "cpu_oom"),
    ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.", "memory", "cpu_oom"),
    ("26/11/21 23:53:01 WARN hdfs.DFSClient: DFSOutputStream ResponseProcessor exception", "hdfs_error", "hdfs_error"),
    ("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling PutObject",
     "external_service_error", "external_service_error"),
    ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://example.com",
     "external_service_error", "external_service_error"),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", "connection_lost", ""),
    ("Traceback (most recent call last):", "traceback", ""),
    (" iteration 120/ 500 | consumed samples: 61440 | lm loss: NAN | loss scale: 1.0 |", "nan_value", "nan_value"),
    (" iteration 120/ 500 | number of nan iterations:   0 | lm loss: nan |", "nan_value", "nan_value"),
    ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}", "nan_value", "nan_value"),
    ("step 12: train_loss=nan", "nan_value", "nan_value"),
    ("iter 5: loss NaN, time 12.1ms", "nan_value", "nan_value"),
    ("loss: tensor(nan, device='cuda:0')", "nan_value", "nan_value"),
]  # fmt: skip

NO_SIGNS = [
    " iteration 120/ 500 | lm loss: 2.1E+00 | number of skipped iterations: 0 | number of nan iterations:   0 |",
    "step 12: val_loss=nan train_loss=2.0",
    "eval loss: nan",
    "validation lm loss: nan",
    "best loss: nan",
    "loss is finite, nan checks are on",
    "the loss of finance data: nano",
    "grad_norm: nan",
    "node7:412:903 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "0 errors, 0 warnings",
    "mean squared error: 0.1",
    "watchdog thread started",
    "retrying after exception of the tokenizer",
    "Loading checkpoint shards: 100%",
]


def scan(*pieces: bytes, now: float = 1.0) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    scanner = Scanner(lambda signature, line: found.append((signature.name, line)))
    for piece in pieces:
        scanner.feed(piece, now)
    scanner.look(now)
    return found


def test_of_a_line_that_a_progress_bar_drew_over_only_the_error_is_reported() -> None:
    drawn = b"\r".join(b"Epoch 0: %d/900 [00:01<01:40]" % number for number in range(20))
    assert scan(drawn + b"\rRuntimeError: CUDA error: unknown error\n") == [
        ("cuda_error", "RuntimeError: CUDA error: unknown error")
    ]


@pytest.mark.parametrize(("line", "name", "symptom"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_line_of_trouble_is_a_sign_of_it(line: str, name: str, symptom: str) -> None:
    signs: list[Signature] = []
    Scanner(lambda signature, _: signs.append(signature)).feed(f"before\n{line}\nafter\n".encode(), 1.0)
    assert [(sign.name, sign.symptom) for sign in signs] == [(name, symptom)]


@pytest.mark.parametrize("line", NO_SIGNS)
def test_a_line_that_only_looks_like_it_is_none(line: str) -> None:
    assert scan(f"{line}\n".encode()) == []


def test_symptoms_are_those_of_the_table() -> None:
    symptoms = {signature.symptom for anchor in ANCHORS for signature in anchor.signatures}
    assert symptoms - {""} <= {str(symptom) for symptom in TABLE_ONE}


ALL = "\n".join([*NO_SIGNS, *(line for line, _, _ in EXAMPLES)]).encode() + b"\n"


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, len(ALL)), max_size=20))
def test_any_cut_of_the_output_gives_the_same_signs(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ALL)]
    pieces = [ALL[start:end] for start, end in itertools.pairwise(edges)]
    assert sorted(scan(*pieces)) == sorted(scan(ALL))
    assert len(scan(ALL)) == len(EXAMPLES)


def test_a_line_is_looked_at_at_once_and_those_of_a_burst_together() -> None:
    found: list[str] = []
    scanner = Scanner(lambda _, line: found.append(line))
    scanner.feed(b"loss: nan 1\n", 5.0)
    assert found == ["loss: nan 1"] and scanner.due_at is None
    scanner.feed(b"loss: nan 2\n", 5.01)
    assert len(found) == 1 and scanner.due_at == 5.0 + GATHERED_S
    scanner.look(5.1)
    assert len(found) == 2 and scanner.due_at is None
    scanner.feed(b"loss: nan 3\n", 5.11)
    scanner.feed(b"x\n" * GATHERED_BYTES, 5.12)
    assert len(found) == 3
    scanner.feed(b"loss: nan 4\n", 7.0)
    assert len(found) == 4


def test_a_line_without_end_is_looked_at_all_the_same_and_kept_short() -> None:
    found = scan(b"\rprogress 1 loss: nan ", b"\rprogress" * LINE_BYTES_MAX)
    assert [name for name, _ in found] == ["nan_value"]
    assert len(found[0][1]) <= 500


def test_who_prints_nothing_but_errors_costs_no_more() -> None:
    flood = b"RuntimeError: CUDA error: unspecified launch failure\n" * 5_000
    assert len(scan(flood)) == LOOKS_A_SECOND_MAX
    assert len(scan(flood, flood)) == LOOKS_A_SECOND_MAX


def test_the_first_of_a_kind_is_told_at_once_and_others_are_counted() -> None:
    alerts, signature = LogAlerts(), ANCHORS[0].signatures[0]
    alerts.add(3, "err", signature, "line 0")
    assert alerts.due_at == 0.0
    (first,) = alerts.take_due(100.0)
    assert (first.key.rank, first.lines, first.occurrences) == (3, ("line 0",), 1)
    for number in range(50):
        alerts.add(3, "err", signature, f"line {number}")
    assert alerts.take_due(100.0 + REPEAT_AFTER_S / 2) == []
    assert alerts.due_at == 100.0 + REPEAT_AFTER_S
    (again,) = alerts.take_due(100.0 + REPEAT_AFTER_S)
    assert again.occurrences == 50 and len(again.lines) == LINES_MAX
    assert alerts.due_at is None


def test_another_rank_or_kind_is_told_at_once_and_a_long_trouble_ever_more_rarely() -> None:
    alerts, (one, other, *_) = LogAlerts(), ANCHORS[0].signatures
    alerts.add(0, "out", one, "a")
    alerts.take_due(0.0)
    alerts.add(0, "out", other, "b")
    alerts.add(1, "out", one, "c")
    assert len(alerts.take_due(1.0)) == 2
    told = 0
    for now in range(36_000):
        alerts.add(0, "out", one, "a")
        told += len(alerts.take_due(float(now)))
    assert 36_000 / REPEAT_MAX_S <= told <= 36_000 / REPEAT_MAX_S + 10
