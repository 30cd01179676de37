"""Which interpreter ranks run with, and when it has to be started for each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast_agent.companions.interpreter import Interpreter, interpreter_of, read_at_start

OF_AGENT = {"LD_LIBRARY_PATH": "/lib", "PATH": "/bin"}


def job(python: str = "", start: str = "fork", **env: str) -> JobSpec:
    return JobSpec(name="job-1", script="/train.py", cwd="/", directory="/jobs/1", start=start, python=python, env=env)


@pytest.mark.parametrize(
    ("name", "value", "is_late"),
    [
        ("WANDB_MODE", "offline", False),
        ("NCCL_DEBUG", "INFO", False),
        ("PATH", "/other", False),
        ("PYTHONPATH", "/src", False),
        ("PYTHONUNBUFFERED", "1", False),
        ("OMP_NUM_THREADS", "8", False),
        ("MKL_NUM_THREADS", "1", False),
        ("LD_LIBRARY_PATH", "/lib", False),
        ("LD_LIBRARY_PATH", "/opt/cuda", True),
        ("LD_PRELOAD", "libjemalloc.so", True),
        ("MALLOC_ARENA_MAX", "1", True),
        ("MKL_NUM_THREADS", "8", True),
        ("PYTHONHASHSEED", "0", True),
        ("TORCH_LOGS", "dynamo", True),
    ],
)
def test_a_fork_has_to_be_a_new_interpreter_for_what_is_read_at_its_start(name: str, value: str, is_late: bool) -> None:
    assert read_at_start({name: value}, OF_AGENT) == ([name] if is_late else [])
    started = interpreter_of(job(**{name: value}), OF_AGENT, "node-0")
    assert (started.start, started.path, len(started.notes)) == (("exec", "", 1) if is_late else ("fork", "", 0))


def test_the_jobs_interpreter_is_started_where_the_node_has_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    assert interpreter_of(job(str(python)), OF_AGENT, "node-0") == Interpreter("exec", str(python), ())
    missing = interpreter_of(job("/nowhere/python"), OF_AGENT, "node-0")
    assert missing[:2] == ("fork", "") and missing.notes[0].startswith("node-0 has no /nowhere/python: ")


def test_the_agents_own_interpreter_is_not_started_again_under_another_of_its_names() -> None:
    other = str(Path(sys.executable).with_name(f"python{sys.version_info.major}"))
    for python in ("", sys.executable, other):
        assert interpreter_of(job(python), OF_AGENT, "node-0") == Interpreter("fork", "", ())
    assert interpreter_of(job(start="exec"), OF_AGENT, "node-0") == Interpreter("exec", "", ())
