"""What collectors and editors do to a log does not change its answer."""

import json
from collections.abc import Callable

import pytest

from holdfast.cli.offline.log_sources import InUtf8, blocks
from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.launcher_reports import only_own_end, rank_ends
from holdfast.engines.crash.log import dissect
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan
from holdfast.symptoms import Symptom

LOGS = (
    (
        'Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n    import apex\n'
        "ModuleNotFoundError: No module named 'apex'\n",
        Symptom.IMPORT_ERROR,
    ),
    ("step 7 loss 2.1 lr 0.1\nterminate called after throwing an instance of 'std::bad_alloc'\n", Symptom.CPU_OOM),
    ('FATAL:   "train": executable file not found in $PATH\n', Symptom.CONTAINER_ERROR),
    ("usage: conda [-h] COMMAND\nconda: error: argument COMMAND: invalid choice: 'ativate'\n", Symptom.CONFIG_ERROR),
)


def of(log: str) -> Diagnosis:
    scan = LogScan("train.log", rule_book().line_filter)
    scan.feed(log.encode())
    return diagnose([scan.end()])


def each_line(log: str, form: str) -> str:
    return "".join(form.replace("LINE", line) + "\n" for line in log.splitlines())


@pytest.mark.parametrize(
    "form",
    [
        "[2026-05-01, 10:00:07 UTC] {subprocess.py:93} INFO - LINE",
        "[2026-05-01T10:00:07.123+0000] {pod_manager.py:431} INFO - [base] LINE",
        "2026-05-01 10:00:07.000000000 +0000 kube.train: LINE",
        "train\tRun step\t2026-05-01T10:00:07.1234567Z LINE",
        "May 01 10:00:07 node-17 python3[4711]: LINE",
        "May 01 10:00:07 node-17 run-train.sh[4711]: LINE",
        "[10:00:07] LINE",
        "10:00:07.123 LINE",
        "1714557600123 LINE",
        "1714557600.123 LINE",
    ],
)
def test_a_collectors_prefix_and_its_level_do_not_change_the_answer(form: str) -> None:
    for log, symptom in LOGS:
        assert of(each_line(log, form)).symptom is symptom, log


def test_records_of_fluentd_are_unpacked() -> None:
    for log, symptom in LOGS:
        records = (json.dumps({"log": line + "\n", "stream": "stderr", "time": "x"}) for line in log.splitlines())
        text = "".join(f"2026-05-01 10:00:07.000000000 +0000 kube.train: {record}\n" for record in records)
        assert of(text).symptom is symptom


def test_what_the_kernel_says_of_a_program_keeps_its_name() -> None:
    assert dissect("python[4711]: segfault at 18 ip 7f sp 7f error 4 in libtorch.so", 1).text.startswith("python[4711]")


def test_a_frame_that_ends_behind_a_stamp_is_no_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 7, in <module>',
        "    main()",
        "  File",
    ]
    assert of("".join(f"2026-05-01T10:00:07Z {line}\n" for line in lines)).symptom is Symptom.UNKNOWN


class _Pipe:
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def read(self, size: int, /) -> bytes:
        data, self._data = self._data[: min(size, self._size)], self._data[min(size, self._size) :]
        return data


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: text.encode("utf-8-sig"),
        str.encode,
    ],
    ids=["UTF-16", "UTF-16 of the other order", "UTF-8 with a mark", "UTF-8"],
)
@pytest.mark.parametrize("size", [3, 7, 1 << 16])
def test_encodings_with_a_mark_are_read(encoded: Callable[[str], bytes], size: int) -> None:
    text = "Schritt 7 \u2013 Verlust 2,1 \U0001f600\nKeyError: 'a'\n"
    assert b"".join(blocks(InUtf8(_Pipe(encoded(text), size)))).decode() == text


def test_the_one_rank_that_ended_by_itself_is_named_and_not_one_that_another_may_precede() -> None:
    def named(*reports: str) -> int | None:
        return only_own_end(rank_ends(dissect(f"srun: error: n1: {report}", at) for at, report in enumerate(reports)))

    assert named("task 3: Exited with exit code 255", "tasks 0-2: Terminated") == 3
    assert named("task 3: Exited with exit code 1", "tasks 0-2: Killed") == 3
    assert named("task 2: Killed", "task 3: Exited with exit code 1", "tasks 0-1: Terminated") is None
    assert named("tasks 2-3: Exited with exit code 1", "tasks 0-1: Terminated") is None
    assert named("task 3: Exited with exit code 143", "tasks 0-2: Terminated") is None
    assert named("task 3: Exited with exit code 1") is None


def test_no_exit_code_is_made_up_for_a_trainer_that_paddle_names_without_one() -> None:
    scan = LogScan("launch.log", rule_book().line_filter)
    scan.feed(b"ABORT!!! Out of all 8 trainers, the trainer process with rank=[3] was aborted. Please check its log.\n")
    found = diagnose([scan.end()])
    assert found.first_rank == 3
    assert not [one.text for one in found.evidence if "exit code" in one.text]
