"""The controller's symptom of one rank's end: rules of `holdfast.engines.crash`, symptoms of the ladder."""

from datetime import UTC, datetime

import pytest

from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankException
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast.trainer.checkpoint.errors import StepsAbsent
from holdfast_controller.plan.evidence.rank_exits import TEXT_CHARS_MAX, rank_exit
from holdfast_controller.plan.incident.classify import STEPS_ABSENT, classify, diagnose, lacks_steps

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
