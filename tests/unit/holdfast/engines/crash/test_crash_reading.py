"""How logs are read: whose line it is, when it was written, what training survived; memory is bounded."""

import io

import pytest

from holdfast.cli.offline.log_sources import BLOCK_BYTES, blocks, named
from holdfast.engines.crash import Diagnosis, diagnose, diagnose_end, rule_matches, scan_end
from holdfast.engines.crash.log import dissect, progress
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import HEAD_LINES, TAIL_LINES, LogScan
from holdfast.symptoms import Root, Symptom

OOM = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\ntorch.OutOfMemoryError: CUDA out of memory.\n'
KEY_ERROR = 'Traceback (most recent call last):\n  File "/job/t.py", line 2, in <module>\n    x["a"]\nKeyError: \'a\'\n'
RESET = "RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.2]:31231\n"


def steps(first: int, last: int) -> str:
    return "".join(f"step {number} loss 2.1 lr 0.1\n" for number in range(first, last + 1))


def of(**logs: str) -> Diagnosis:
    """The diagnosis of logs by name; `rank_3` is that of rank 3."""
    scans = []
    for name, text in logs.items():
        scan = LogScan(name, rule_book().line_filter, named(name).rank)
        scan.feed(text.encode())
        scans.append(scan.end())
    return diagnose(scans)


@pytest.mark.parametrize(
    ("line", "rank", "local", "text"),
    [
        ("[rank3]: Traceback", 3, False, "Traceback"),
        ("[rank12]:[E515 10:00:01.2 x.cpp:1] y", 12, False, "[E515 10:00:01.2 x.cpp:1] y"),
        ("[default3]:Traceback", 3, True, "Traceback"),
        ("[trainer0]: Traceback", 0, True, "Traceback"),
        ("[1,2]<stderr>:Traceback", 2, False, "Traceback"),
        ("2024-05-15T10:00:00.123456789Z stderr F [rank1]: KeyError: 'a'", 1, False, "KeyError: 'a'"),
        ("(TrainWorker pid=4711, ip=10.0.0.2) KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("[E ProcessGroupNCCL.cpp:475] [Rank 7] Watchdog", 7, False, "[E ProcessGroupNCCL.cpp:475] [Rank 7] Watchdog"),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 5] x", 5, False, "[PG ID 0 PG GUID 0(default_pg) Rank 5] x"),
        ("\x1b[31m[rank4]: KeyError: 'a'\x1b[0m", 4, False, "KeyError: 'a'"),
        ("12: not a rank", None, False, "12: not a rank"),
        ("gpu-node-07: [rank5]: KeyError: 'a'", 5, False, "KeyError: 'a'"),
        ("gpu-node-07: KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("train.py: KeyError: 'a'", None, False, "train.py: KeyError: 'a'"),
        ("trainer-1  | KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("41.7s\t12\tKeyError: 'a'", None, False, "KeyError: 'a'"),
        ("2024-05-15 10:00:00,100 - launch - INFO - [rank2]: KeyError: 'a'", 2, False, "KeyError: 'a'"),
        ("\t[rank1]: KeyError: 'a'", 1, False, "KeyError: 'a'"),
        ("(raylet, ip=10.0.0.2) KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("(W pid=4711) [repeated 7x across cluster] KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("#033[31m[rank4]: KeyError: 'a'#033[0m", 4, False, "KeyError: 'a'"),
        ("[PG 7 Rank 1] x", None, False, "[PG 7 Rank 1] x"),
        ("[pod/train-0/main] KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("> KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("> building the data set", None, False, "> building the data set"),
        ("Nov 28 23:01:02 gpu-07 train[4711]: KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("Nov 28 23:01:02 gpu-07 kernel: NVRM: Xid", None, False, "kernel: NVRM: Xid"),
        ("2024-05-15 10:00:00,100 - launch - INFO - KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("KeyError   ", None, False, "KeyError"),
        # Frames of Docker's raw stream: a header that ends with the length, and the stamp.
        ("[train] x2025-05-23T16:49:12.287821163Z KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("\x02\x00\x00\x00\x00\x00\x00x2025-05-23T16:49:12.287821163Z KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("[231843] KeyError: 'a'", None, False, "KeyError: 'a'"),
        ("[231843] samples read", None, False, "[231843] samples read"),
    ],
)
def test_whose_line_it_is(line: str, rank: int | None, local: bool, text: str) -> None:
    taken = dissect(line, 1)
    assert (taken.rank, taken.local, taken.text) == (rank, local, text)


def test_when_a_collector_took_a_line_of_torchruns_table_is_not_when_the_rank_ended() -> None:
    table = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n" + "".join(
        f"{head}  time      : 2024-05-15_10:00:07\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : -11 (pid: 4)\n"
        for rank, head in ((1, "[1]:\n"), (0, "Root Cause (first observed failure):\n[0]:\n"))
    )
    stamped = "".join(
        f"2024-05-15T10:00:{10 + number}.5Z stderr F {line}\n" for number, line in enumerate(table.splitlines())
    )
    for log in (table, stamped):
        assert (of(log=log).symptom, of(log=log).first_rank) == (Symptom.SEGFAULT, None)


def test_of_a_long_line_head_and_end_are_read() -> None:
    long = "x" * 5000
    assert of(log=f"launch.py:{long}] exits with return code = -11\n").symptom is Symptom.SEGFAULT
    assert of(log=f"RuntimeError: CUDA error: an illegal memory access was encountered {long}\n").symptom is (
        Symptom.ILLEGAL_MEMORY_ACCESS
    )


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2024-05-15 10:00:00,100 INFO x", "2024-05-15 10:00:00,200 INFO x"),
        ("E0515 10:00:00.100000 1 x.cpp:1] y", "2024-05-15T10:00:01Z y"),
        ("[rank0]:[E515 10:00:00.1 x.cpp:1] y", "[2024-05-15 10:00:00,900] [INFO] y"),
        ("[Wed May 15 10:00:00 2024] x", "May 15 10:00:01 node kernel: x"),
        ("  time      : 2024-05-15_10:00:00", "2024/05/15 10:00:01 x"),
    ],
)
def test_times_of_many_forms_compare(earlier: str, later: str) -> None:
    first, second = dissect(earlier, 1).at, dissect(later, 2).at
    assert first is not None and second is not None and first < second


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (" iteration    31214/  115311 | lm loss: 2.1E+00 |", 31214),
        ("step 7 loss 2.1", 7),
        ("{'loss': 1.2, 'learning_rate': 9.1e-06, 'epoch': 0.31}", 310000),
        ("Epoch 0:  6%|##  | 32040/500150 [6:28:43<94:39:17, 1.37it/s, loss=2.6]", 32040),
        ("Epoch [1][50/7330]\tlr: 1.978e-03, time: 1.090, loss: 2.1", 50),
        ("Loading checkpoint shards:  57% 4/7 [00:37<00:28,  9.42s/it]", None),
        ("step 7 failed: loss is not there", None),
        ("loss 2.1", None),
    ],
)
def test_steps_are_told_from_other_numbers(line: str, number: int | None) -> None:
    assert progress(line) == number


def test_an_error_that_training_went_on_after_ended_nothing() -> None:
    assert of(log=steps(1, 3) + OOM + steps(4, 9)).symptom is Symptom.UNKNOWN
    assert of(log=steps(1, 3) + OOM + steps(4, 9) + KEY_ERROR).symptom is Symptom.USER_CODE_ERROR


def test_a_last_step_of_another_rank_hides_no_error() -> None:
    assert of(log=steps(1, 3) + OOM + steps(4, 4)).symptom is Symptom.CUDA_OOM


def test_what_goes_on_in_blocks_without_trouble_is_seen() -> None:
    scan = LogScan("log", rule_book().line_filter)
    for block in (OOM, steps(4, 900), steps(901, 1800)):
        scan.feed(block.encode())
    assert diagnose([scan.end()]).symptom is Symptom.UNKNOWN


def test_steps_that_were_buffered_hide_no_error() -> None:
    scan = LogScan("rank-0.log", rule_book().line_filter, 0)
    scan.feed((KEY_ERROR + steps(1, 60)).encode())
    assert diagnose([scan.end()], {0: 1}).symptom is Symptom.USER_CODE_ERROR
    assert of(log=KEY_ERROR + steps(1, 5) + RESET).symptom is Symptom.USER_CODE_ERROR


def test_an_error_handled_at_the_start_explains_no_later_end() -> None:
    scan = LogScan("rank-0.log", rule_book().line_filter, 0)
    scan.feed((KEY_ERROR + steps(1, 60)).encode())
    assert diagnose([scan.end()], {0: -9}).symptom is Symptom.KILLED
    assert of(log=KEY_ERROR + steps(1, 60) + RESET).symptom is Symptom.UNKNOWN
    assert of(log=KEY_ERROR + steps(1, 60)).symptom is Symptom.UNKNOWN


def test_only_the_last_attempt_counts() -> None:
    restart = "I0515 10:00:00.1 1 agent/api.py:900] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    assert of(log=OOM + restart + KEY_ERROR).symptom is Symptom.USER_CODE_ERROR
    assert of(log=OOM + restart + "waiting\n").symptom is Symptom.CUDA_OOM


def test_a_cascade_never_goes_before_a_first_hand_end_however_early_it_was_said() -> None:
    early = "2024-05-15 10:00:00,000 ERROR x\n" + RESET
    late = "2024-05-15 10:09:00,000 ERROR x\n" + KEY_ERROR
    said = of(**{"rank-0.err": early, "rank-1.err": early, "rank-2.err": late})
    assert (said.symptom, said.first_rank) == (Symptom.USER_CODE_ERROR, 2)
    assert [other.rank for other in said.others] == [0, 1]


def test_time_decides_between_equals_and_without_it_nobody_is_named() -> None:
    at = "2024-05-15 10:00:0{},000 ERROR x\n"
    assert of(**{"rank-0.err": at.format(5) + OOM, "rank-1.err": at.format(3) + OOM}).first_rank == 1
    assert of(**{"rank-0.err": OOM, "rank-1.err": OOM}).first_rank is None


def test_a_kernel_line_of_another_time_or_thing_explains_no_end_of_a_rank() -> None:
    xid = "[Tue May 14 10:00:00 2024] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    stamped = "2024-05-15 10:00:00,000 ERROR x\n" + KEY_ERROR
    assert of(**{"rank-0.err": stamped, "dmesg.log": xid}).symptom is Symptom.USER_CODE_ERROR
    assert of(**{"rank-0.err": KEY_ERROR, "dmesg.log": xid}).symptom is Symptom.USER_CODE_ERROR
    near = xid.replace("May 14", "May 15")
    lost = "2024-05-15 10:00:09,000 ERROR x\nRuntimeError: CUDA error: unknown error\n"
    said = of(**{"rank-0.err": lost, "dmesg.log": near})
    assert (said.symptom, said.root) == (Symptom.GPU_LOST, Root.INFRASTRUCTURE)


def test_a_rank_that_ended_well_has_no_error() -> None:
    scan = LogScan("rank-0.err", rule_book().line_filter, 0)
    scan.feed(OOM.encode())
    assert diagnose([scan.end()], {0: 0, 1: -11}).first_rank == 1


def test_an_exit_code_beside_a_traceback_is_how_it_came_down() -> None:
    scan = LogScan("rank-0.err", rule_book().line_filter, 0)
    scan.feed(KEY_ERROR.encode())
    assert diagnose([scan.end()], {0: -11}).symptom is Symptom.USER_CODE_ERROR


def in_blocks(log: bytes) -> Diagnosis:
    scan = LogScan("log", rule_book().line_filter)
    for block in blocks(io.BytesIO(log)):
        scan.feed(block)
    return diagnose([scan.end()])


def test_what_follows_a_progress_bar_is_read_and_counted_as_its_line() -> None:
    drawn = b"".join(b"\rEpoch 0: %d/90000 [00:01<01:40, loss=2.1]" % number for number in range(5000))
    ecc = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\nbye\n"
    said = in_blocks(b"one\n" + drawn + b"\r" + ecc)
    assert (said.symptom, said.evidence[0].line) == (Symptom.ECC_ERROR, 2)
    assert in_blocks(drawn + b"\r" + ecc + b"one\n" * 7 + KEY_ERROR.encode()).evidence[0].line == 13


def test_of_a_line_longer_than_a_block_beginning_and_end_are_read() -> None:
    long = b"x" * (5 * BLOCK_BYTES)
    ended = in_blocks(b"['python', '" + long + b"'] exits with return code = -11\nnext\n")
    assert ended.symptom is Symptom.SEGFAULT
    begun = in_blocks(b"RuntimeError: CUDA error: an illegal memory access was encountered " + long + b"\n")
    assert begun.symptom is Symptom.ILLEGAL_MEMORY_ACCESS


def test_a_launcher_that_kills_ranks_after_another_has_failed_names_none_of_them() -> None:
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n[1]:\n"
        "  time      : 2024-05-15_10:00:37\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 10)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 10\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2024-05-15_10:00:07\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 12)\n"
    )
    assert (of(log=table).symptom, of(log=table).first_rank) == (Symptom.UNKNOWN, 3)
    said = of(**{"torchrun.log": table, "rank-3.err": KEY_ERROR})
    assert (said.symptom, said.first_rank) == (Symptom.USER_CODE_ERROR, 3)


def test_what_a_script_reports_as_information_ended_nothing() -> None:
    assert of(log="INFO:trainer:the previous job's state: State=PREEMPTED\n").symptom is Symptom.UNKNOWN
    killed = "INFO queue: 1 pod OOMKilled last week\nrun.sh: line 12: 4711 Killed   python train.py\n"
    assert of(log=killed).symptom is Symptom.KILLED


def test_an_exception_of_an_unknown_kind_is_the_scripts_own_unless_its_words_point_elsewhere() -> None:
    raised = 'Traceback (most recent call last):\n  File "/job/t.py", line 2, in <module>\n    plan()\n{}\n'
    own = of(log=raised.format("plan.PlanRefused: no stage fits"))
    assert (own.symptom, own.confidence) == (Symptom.USER_CODE_ERROR, 0.4)
    assert of(log=raised.format("store.FeatureStoreUnavailable: no answer")).symptom is Symptom.UNKNOWN
    assert of(log="plan.PlanRefused: no stage fits\n").symptom is Symptom.UNKNOWN


def test_the_epilogue_of_a_watchdog_gives_way_to_what_it_ended_for() -> None:
    epilogue = (
        "[rank2]:[E515 10:00:00.1 ProcessGroupNCCL.cpp:628] [Rank 2] Some NCCL operations have failed or timed out.\n"
    )
    lost = "[rank2]: DistBackendError: NCCL error in: x.cpp:2006, remote process exited or there was a network error\n"
    assert of(log=epilogue + lost).symptom is Symptom.NCCL_ERROR
    timed_out = "[rank2]:[E515 10:00:00.1 x.cpp:1] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(\n"
    assert of(log=timed_out + epilogue).symptom is Symptom.NCCL_TIMEOUT
    general = "RuntimeError: NCCL error in: x.cpp:172, unhandled system error, NCCL version 2.7.8\n"
    assert of(log=timed_out + general).symptom is Symptom.NCCL_TIMEOUT


@pytest.mark.parametrize(
    ("held", "root"),
    [
        ("Process 88123 has 74.20 GiB memory in use. {} 4.71 GiB memory in use.", Root.INFRASTRUCTURE),
        ("Process 88123 has 900.00 MiB memory in use. {} 70.1 GiB memory in use.", Root.USER_CODE),
        ("Process 3521 has 44.2 GiB memory in use. Of the memory 42.9 GiB is allocated by PyTorch", Root.USER_CODE),
        ("{} 70.1 GiB memory in use.", Root.USER_CODE),
    ],
)
def test_a_gpu_that_another_process_fills_is_not_the_scripts_fault(held: str, root: Root) -> None:
    held = held.format("Including non-PyTorch memory, this process has")
    said = of(log=f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. {held}\n")
    assert (said.symptom, said.root) == (Symptom.CUDA_OOM, root)


def test_hardware_that_the_message_of_an_exception_names_below_it_is_the_cause() -> None:
    log = "RuntimeError: wait:a.cpp:435 NPU function error: aclrtSynchronizeDevice, error code is 507054\n"
    assert of(log=log).symptom is Symptom.CUDA_ERROR
    assert of(log=log + "[Error]: HBM MULTI BIT ECC ERROR.\n").symptom is Symptom.ECC_ERROR


def test_a_block_that_is_noise_is_harmless() -> None:
    noise = bytes(range(256)) * 2000 + b"\nerror " + b"x" * 5_000_000 + b"\n"
    scan = LogScan("log", rule_book().line_filter)
    for block in blocks(io.BytesIO(noise + KEY_ERROR.encode())):
        assert len(block) <= 2 * BLOCK_BYTES
        scan.feed(block)
    said = diagnose([scan.end()])
    assert said.symptom is Symptom.USER_CODE_ERROR


def test_memory_is_bounded_however_much_is_said() -> None:
    scan = LogScan("log", rule_book().line_filter)
    for _ in range(20):
        scan.feed(b"ERROR something failed again\n" * 1000)
    (attempt,) = scan.end().attempts
    assert [len(lines) for lines in attempt.values()] == [HEAD_LINES + TAIL_LINES]


def test_line_numbers_count_all_lines() -> None:
    said = of(log="fine\n" * 70_000 + KEY_ERROR)
    assert said.evidence[0].line == 70_004


@pytest.mark.parametrize(
    ("name", "rank", "local"),
    [
        ("rank-3.err", 3, False),
        ("logs/job/rank-12.out", 12, False),
        ("stderr_rank_5.log.gz", 5, False),
        ("run/attempt_0/2/stderr.log", 2, True),
        ("ranking.log", None, False),
        ("train.log", None, False),
    ],
)
def test_names_tell_whose_log_it_is(name: str, rank: int | None, local: bool) -> None:
    assert (named(name).rank, named(name).local) == (rank, local)


def test_one_end_by_itself() -> None:
    said = diagnose_end(exception_type="builtins.KeyError", message="'a'", trace=KEY_ERROR, exit_code=1, rank=4)
    assert (said.symptom, said.first_rank) == (Symptom.USER_CODE_ERROR, 4)
    assert diagnose_end(signal=11, rank=4).symptom is Symptom.SEGFAULT
    assert diagnose_end(signal=9, rank=4, log_tail="step 1\n").symptom is Symptom.KILLED
    assert diagnose_end(exit_code=3, rank=4).symptom is Symptom.UNKNOWN


def test_an_end_that_is_judged_with_later_ones_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [("RuntimeError", f"Connection closed by peer [127.0.0.{rank}]:4000", "", "", rank) for rank in (1, 2)]
    first, later = lost
    alone = diagnose([scan_end(*first)], {1: 1})
    reads = []
    read = rule_matches.traceback.exceptions
    monkeypatch.setattr(rule_matches.traceback, "exceptions", lambda lines: reads.append(lines) or read(lines))
    together = diagnose([scan_end(*first), scan_end(*later)], {1: 1, 2: 1})
    assert len(reads) == 1
    assert diagnose([scan_end(*first)], {1: 1}) == alone
    assert together.rule == alone.rule


def test_the_level_of_native_code_counts_behind_any_prefix() -> None:
    for prefix in ("", "trainer :: ", "[n3] "):
        line = dissect(f"{prefix}[W socket.cpp:558] [c10d] The address of (n1, 3389) cannot be retrieved", 1)
        assert line.level == "quiet"


def test_the_level_of_key_value_logs() -> None:
    levels = {"debug": "info", "info": "info", "warning": "quiet", "error": "loud", "fatal": "loud"}
    for name, level in levels.items():
        assert dissect(f'time="2026-01-02T03:04:05Z" level={name} msg="group 7 cannot be made"', 1).level == level


def test_a_program_before_a_frame_is_no_exception() -> None:
    table = "tool: Failures:\ntool:   <NO_OTHER_FAILURES>\n"
    stack = 'tool:   File "/opt/run.py", line 7, in launch\ntool:     raise ChildFailedError(\n'
    assert of(log=f"{stack}tool: torch.distributed.elastic.errors.ChildFailedError:\n{table}").symptom == "unknown"


def test_a_crash_of_another_program_does_not_hide_what_the_kernel_says_of_a_gpu() -> None:
    crash = "[811.5] warmup[4711]: segfault at 7f10 ip 000055d2 sp 00007ffc error 4 in warmup[55d2+1000]\n"
    fault = "[911.5] NVRM: Xid (PCI:0000:18:00): 31, pid=4712, Ch 00000039, MMU Fault: ENGINE GRAPHICS\n"
    assert of(log=crash).symptom is Symptom.SEGFAULT
    assert of(log=crash + fault).symptom is not Symptom.SEGFAULT


def test_killed_counts_behind_the_name_of_a_machine() -> None:
    assert of(log="n-07: step 3 loss 2.1\nn-07: Killed\n").symptom is Symptom.KILLED


def test_an_exception_about_the_end_of_another_process_names_no_cause() -> None:
    for error in (
        "RuntimeError: stage 3 finished with non-zero status 2",
        "Exception: part 0 terminated with exit code 1.",
    ):
        log = f'Traceback (most recent call last):\n  File "/opt/all.py", line 7, in <module>\n    wait()\n{error}\n'
        assert of(log=log).symptom == "unknown", error


def test_a_label_below_a_frame_is_no_exception() -> None:
    frame = 'Traceback (most recent call last):\n  File "/opt/all.py", line 7, in <module>\n'
    assert of(log=f"{frame}Node: 'reduce_3/value'\n").symptom == "unknown"
    assert of(log=f"{frame}TooFewSamples: 3\n").symptom == "user_code_error"


def test_an_exception_whose_message_is_a_workers_traceback_is_read() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/train.py", line 77, in train\n    for batch in batches:\n'
        '  File "/x/torch/utils/data/dataloader.py", line 307, in _process_next_batch\n'
        "    raise batch.exc_type(batch.exc_msg)\n"
        'TypeError: Traceback (most recent call last):\n  File "/x/t.py", line 39, in collated\n    size = len(row)\n'
        "TypeError: object of type 'int' has no len()\n"
    )
    assert of(log=log).symptom == Symptom.USER_CODE_ERROR
