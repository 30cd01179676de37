"""The controller's symptom of one rank's end: rules of `holdfast.engines.crash`, symptoms of the ladder."""

from datetime import UTC, datetime

import pytest

from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankException
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast.trainer.checkpoint.errors import DirectoryTaken, StepsAbsent
from holdfast_controller.plan.evidence.rank_exits import TEXT_CHARS_MAX, rank_exit
from holdfast_controller.plan.incident.classify import (
    DIRECTORY_TAKEN,
    STEPS_ABSENT,
    classify,
    describe_exit,
    diagnose,
    has_no_directory,
    lacks_steps,
    signature,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ended(error: str = "", *, signal: int | None = None, code: int | None = None, log: str = "") -> ProcessExited:
    name, _, message = error.partition(": ")
    return ProcessExited(
        id="1",
        at=NOW,
        source="agent",
        job="job",
        node="node-0",
        generation=1,
        rank=2,
        local_rank=2,
        exit_code=1 if error else code,
        signal=signal,
        exited_at=NOW,
        exception=RankException(type=name, message=message, traceback="") if error else None,
        log_tail=log,
    )


def test_the_controller_knows_the_error_of_ranks_that_refuse_to_start_from_scratch() -> None:
    assert f"{StepsAbsent.__module__}.{StepsAbsent.__qualname__}" == STEPS_ABSENT
    assert lacks_steps(ended(f"{STEPS_ABSENT}: none is left in memory"))
    assert not lacks_steps(ended("mine.StepsAbsent: none"))


def test_the_controller_knows_the_error_of_ranks_whose_directory_another_job_has() -> None:
    assert f"{DirectoryTaken.__module__}.{DirectoryTaken.__qualname__}" == DIRECTORY_TAKEN
    assert has_no_directory(ended(f"{DIRECTORY_TAKEN}: job first writes there"))
    assert not has_no_directory(ended("mine.DirectoryTaken: it is"))


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        ("TypeError: unsupported operand", Symptom.USER_EXCEPTION),
        ("mine.Boom: nothing known", Symptom.USER_EXCEPTION),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Symptom.USER_EXCEPTION),
        ("RuntimeError: CUDA error: device-side assert triggered", Symptom.USER_EXCEPTION),
        ("MemoryError: ", Symptom.USER_EXCEPTION),
        ("ProcessExitedException: process 1 terminated with signal SIGKILL", Symptom.KILLED_BY_SIGNAL),
        ("RuntimeError: Connection closed by peer [10.0.0.1]:1", Symptom.PEER_LOST),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Symptom.PEER_LOST),
        (
            "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
            Symptom.PEER_LOST,
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x, remote process exited or there was a network error",
            Symptom.PEER_LOST,
        ),
        # Who cannot restore because another rank cannot has done nothing wrong.
        ("CheckpointMismatch: step 40: another rank cannot use it, see its log", Symptom.PEER_LOST),
        (
            "CheckpointError: step 50 was not saved: rank 2 could not do its part, its log says why; older checkpoints "
            "are untouched",
            Symptom.PEER_LOST,
        ),
        (
            "CheckpointError: /job/checkpoints cannot be claimed: Input/output error; check the mount",
            Symptom.INFRASTRUCTURE_ERROR,
        ),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", Symptom.INFRASTRUCTURE_ERROR),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Symptom.INFRASTRUCTURE_ERROR),
        ("OSError: [Errno 28] No space left on device", Symptom.INFRASTRUCTURE_ERROR),
        ("OSError: [Errno 12] Cannot allocate memory", Symptom.INFRASTRUCTURE_ERROR),
        ("OSError: [Errno 116] Stale file handle", Symptom.INFRASTRUCTURE_ERROR),
        ("RuntimeError: ibv_modify_qp failed", Symptom.INFRASTRUCTURE_ERROR),
        # A service elsewhere fails no node, and is not of the script's making.
        ("HTTPError: 503 Server Error: Service Unavailable for url: https://hub/x", Symptom.SERVICE_ELSEWHERE),
        ("OSError: HDFS connection failed", Symptom.SERVICE_ELSEWHERE),
        (
            "ClientError: An error occurred (SlowDown) when calling the PutObject operation: x",
            Symptom.SERVICE_ELSEWHERE,
        ),
        # Who is refused, or asks for what is not there, is refused again.
        ("NoCredentialsError: Unable to locate credentials", Symptom.USER_EXCEPTION),
        (
            "ClientError: An error occurred (404) when calling the HeadObject operation: Not Found",
            Symptom.USER_EXCEPTION,
        ),
    ],
)
def test_exceptions(error: str, symptom: Symptom) -> None:
    assert classify(ended(error)) is symptom


def test_a_single_rank_has_lost_no_partner() -> None:
    assert classify(ended("RuntimeError: Connection closed by peer [10.0.0.1]:1"), alone=True) is Symptom.USER_EXCEPTION


@pytest.mark.parametrize(
    ("signal", "log", "symptom"),
    [
        (9, "", Symptom.KILLED_BY_SIGNAL),
        (11, "RuntimeError: Connection closed by peer\n", Symptom.KILLED_BY_SIGNAL),
        (6, "", Symptom.KILLED_BY_SIGNAL),
        (6, "terminate called\n  what():  NCCL watchdog: Connection closed by peer\n", Symptom.PEER_LOST),
        (
            6,
            "  what():  CUDA error: uncorrectable ECC error encountered\nConnection closed by peer\n",
            Symptom.KILLED_BY_SIGNAL,
        ),
    ],
)
def test_signals(signal: int, log: str, symptom: Symptom) -> None:
    assert classify(ended(signal=signal, log=log)) is symptom


def test_ends_without_an_exception_or_a_signal() -> None:
    assert classify(ended(code=3)) is Symptom.EXIT_CODE
    assert classify(ended()) is Symptom.RANKS_VANISHED


def test_the_diagnosis_has_the_finer_symptom() -> None:
    diagnosis = diagnose(ended("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"))
    assert (diagnosis.symptom, diagnosis.root, diagnosis.first_rank) == (Symptom.ECC_ERROR, Root.INFRASTRUCTURE, 2)
    assert diagnose(ended(signal=11)).symptom is Symptom.SEGFAULT


def test_the_cause_of_an_abort_is_found_above_the_stacks_that_python_prints_after_it() -> None:
    frames = "".join(f'  File "/job/deep_{number}.py", line {number} in step_{number}\n' for number in range(60))
    log = (
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
        "  what():  CUDA error: unspecified launch failure\nFatal Python error: Aborted\n\n"
        f"Thread 0x00007f0000000001 (most recent call first):\n{frames}\n"
        f"Current thread 0x00007f0000000002 (most recent call first):\n{frames}\n"
    )
    event = ended(signal=6, log=log)
    assert diagnose(event).symptom is Symptom.CUDA_ERROR
    kept = rank_exit(event, diagnose(event), LadderPolicy())
    assert len(kept.log_tail) <= TEXT_CHARS_MAX and "CUDA error" in kept.log_tail


CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def torchruns_report(*ends: tuple[int, int, int]) -> str:
    """What torchrun prints of ranks, each with exit code and second of its end; the last one is what it saw first."""
    *others, first = (
        f"  time      : 2026-11-29_22:41:{second:02}\n  host      : localhost\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {4711 + rank})\n  error_file: <N/A>\n"
        for rank, code, second in ends
    )
    failures = "".join(f"[{place}]:\n{text}" for place, text in enumerate(others, 1)) or "  <NO_OTHER_FAILURES>\n"
    return (
        f"\n====\ntrain.py FAILED\n----\nFailures:\n{failures}----\n"
        f"Root Cause (first observed failure):\n[0]:\n{first}====\n"
    )


@pytest.mark.parametrize(
    ("ends", "symptom"),
    [
        pytest.param([(1, -9, 5)], Symptom.KILLED_BY_SIGNAL, id="killed"),
        pytest.param([(0, -15, 5), (1, -9, 5)], Symptom.KILLED_BY_SIGNAL, id="killed, and its partner stopped"),
        pytest.param(
            [(1, -11, 5), (0, 1, 5)], Symptom.KILLED_BY_SIGNAL, id="a lost partner of the same second is named"
        ),
        pytest.param([(1, -9, 35), (0, 1, 5)], Symptom.USER_EXCEPTION, id="the launcher ended what ignored SIGTERM"),
        pytest.param([(1, -15, 5), (0, 1, 5)], Symptom.USER_EXCEPTION, id="an error of the script"),
    ],
)
def test_a_process_of_the_scripts_own_launcher_is_judged_as_a_rank(
    ends: list[tuple[int, int, int]], symptom: Symptom
) -> None:
    report = torchruns_report(*ends)
    raised = ended(f"{CHILD_FAILED}: {report}")
    called = ended(
        "subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.",
        log=f"{CHILD_FAILED}:{report}",
    )
    assert [classify(it) for it in (raised, called)] == [symptom, symptom]
    by_code = Symptom.EXIT_CODE if symptom is Symptom.USER_EXCEPTION else symptom
    assert classify(ended(code=1, log=f"{CHILD_FAILED}:{report}")) is by_code


def test_the_sentence_and_the_mark_of_a_killed_process_of_a_launcher_name_the_signal() -> None:
    killed = ended(f"{CHILD_FAILED}: {torchruns_report((1, -9, 5))}")
    assert describe_exit(killed) == (
        "rank 2 on node-0 ended because a process that it had launched was killed by signal 9"
    )
    assert signature(killed) == signature(ended(signal=9)) == "signal 9"


def test_of_a_report_too_long_for_an_exceptions_message_the_end_of_the_log_is_read() -> None:
    report = torchruns_report(*((rank, -15, 5) for rank in range(1, 40)), (0, -9, 5))
    cut = ended(f"{CHILD_FAILED}: {report[:4096]}", log=f"{CHILD_FAILED}:{report}")
    assert classify(cut) is Symptom.KILLED_BY_SIGNAL


def test_an_error_of_the_script_is_no_kill_because_an_earlier_launcher_reported_one() -> None:
    log = f"{CHILD_FAILED}:{torchruns_report((1, -9, 5))}"
    assert classify(ended("KeyError: 'a'", log=log)) is Symptom.USER_EXCEPTION
