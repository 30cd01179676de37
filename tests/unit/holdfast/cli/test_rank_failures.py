"""What the command that follows a job shows of ranks that fail."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.follow import failures
from holdfast.cli.follow.failures import RankFailures
from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankException
from holdfast.fresh_ids import uuid7

START = datetime(2026, 1, 1, tzinfo=UTC)
COPY = f"/state/nodes/n/code/job/{'0a' * 32}/train.py"


class Shown:
    """A job of four ranks on two nodes, whose rank 0 is shown anyway."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures = RankFailures("job", self.lines.append, lambda rank: rank == 0)
        self.failures.ranks, self.failures.source_root = 4, "/home/ada/code"

    def fails(self, rank: int, error: str = "", after_s: float = 0.0, tail: str = "", code: int | None = 1) -> None:
        kind, _, message = error.partition(": ")
        traceback = f'Traceback (most recent call last):\n  File "{COPY}", line 3, in <module>\n{error}\n'
        self.failures.take(
            ProcessExited(
                id=uuid7(),
                at=START,
                source=f"agent/node-{rank // 2}",
                node=f"node-{rank // 2}",
                job="job",
                generation=1,
                rank=rank,
                local_rank=rank % 2,
                exit_code=code,
                signal=None if code else 9,
                exited_at=START + timedelta(seconds=after_s),
                exception=RankException(type=kind, message=message, traceback=traceback) if error else None,
                log_tail=tail,
            )
        )


async def test_a_failure_that_is_reported_after_the_restart_names_that() -> None:
    shown = Shown()
    shown.fails(1, code=3)
    shown.failures.flush()
    shown.failures.generation = 2
    shown.fails(0, code=3)
    shown.failures.flush()
    assert shown.lines == [
        "job: rank 1 on node-0 failed: exit code 3",
        "job: rank 0 on node-0 failed: exit code 3 (before generation 2)",
    ]


async def test_the_first_failure_is_shown_at_once_with_its_last_lines_and_others_in_a_line() -> None:
    shown = Shown()
    shown.fails(1, "RuntimeError: Connection closed by peer [10.0.0.1]:7", after_s=0.2)
    shown.fails(3, "RuntimeError: Connection closed by peer [10.0.0.1]:9", after_s=0.3)
    shown.fails(2, "ValueError: bad batch")
    async with asyncio.timeout(10):
        while not shown.lines:  # noqa: ASYNC110 - the terminal tells nobody
            await asyncio.sleep(0.01)
    first, second = shown.lines
    assert first.splitlines() == [
        "job: rank 2 on node-1 failed: ValueError: bad batch",
        "    Traceback (most recent call last):",
        '      File "/home/ada/code/train.py", line 3, in <module>',
        "    ValueError: bad batch",
    ]
    assert second == "job: ranks 1, 3 (2 of 4) on node-0, node-1 lost the connection to another rank (RuntimeError)"
    assert shown.failures.has_shown(
        f'Traceback (most recent call last):\n  File "{COPY}", line 3, in <module>\nValueError: bad batch'
    )


async def test_the_same_error_of_all_ranks_is_shown_once_and_not_where_a_rank_shows_it_itself() -> None:
    shown = Shown()
    for rank in range(4):
        shown.fails(rank, "ImportError: no module")
    shown.failures.flush()
    assert shown.lines == ["job: ranks 0-3 (4 of 4) on node-0, node-1 failed: ImportError: no module"]
    shown.fails(3, "ImportError: no module")
    shown.failures.flush()
    assert shown.lines[1:] == ["job: rank 3 on node-1 failed: ImportError: no module"], "its lines are known"


async def test_a_rank_that_raised_nothing_is_shown_with_the_end_of_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "TAIL_LINES_MAX", 2)
    shown = Shown()
    shown.fails(1, tail="one\ntwo\nSegmentation fault\n", code=None)
    shown.failures.flush()
    assert shown.lines == ["job: rank 1 on node-0 failed: killed by SIGKILL\n    two\n    Segmentation fault"]
    shown.fails(2, code=3)
    shown.failures.flush()
    assert shown.lines[1:] == ["job: rank 2 on node-1 failed: exit code 3"]


async def test_a_rank_that_is_aborted_is_shown_by_its_reason_and_the_frames_of_its_script() -> None:
    zygote = '  File "/lib/python3.11/site-packages/holdfast_agent/zygote/crew.py", line 7 in run'
    tail = "\n".join(
        [
            "step 5",
            "Fatal Python error: Aborted",
            "",
            "Thread 0x00007f5eabfff6c0 (most recent call first):",
            '  File "/usr/lib/python3.11/threading.py", line 982 in run',
            "",
            "Current thread 0x00007f5f8c7fab80 (most recent call first):",
            '  File "/home/ada/train.py", line 21 in <module>',
            '  File "/lib/python3.11/site-packages/holdfast/trainer/rank.py", line 88 in _execute',
            *[zygote] * 20,
            "",
            "Extension modules: numpy._core (total: 1)",
        ]
    )
    shown = Shown()
    shown.fails(1, tail=tail, code=None)
    shown.failures.flush()
    first, *lines = (line.strip() for line in shown.lines[0].splitlines() if line.strip())
    assert first == "job: rank 1 on node-0 failed: killed by SIGKILL"
    assert lines == [
        "step 5",
        "Fatal Python error: Aborted",
        "Current thread 0x00007f5f8c7fab80 (most recent call first):",
        'File "/home/ada/train.py", line 21 in <module>',
    ]
    assert shown.failures.has_shown(failures.end_of_output(f"step 4\n{tail}"))
