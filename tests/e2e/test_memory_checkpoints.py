"""A script's own checkpoints, answered from memory: a rank is killed while the file is on its way to the disk."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from cluster import JOBS, Cluster
from job import Job
from vault_memory import VaultMemory
from waiting import DEADLINE_S, until

from tests.warm_python import WARM_RANKS, run_warm

pytestmark = pytest.mark.e2e

SCRIPT = JOBS / "saves.py"
STEPS, EVERY = 30, 5
MOMENT_S = 0.001
LOSS = re.compile(r"^iter (\d+): loss (\S+)$", re.MULTILINE)
BEGAN = re.compile(r"^begins at (\d+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The losses of the same script without Holdfast, which nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed")
    return _losses(run_warm([sys.executable, WARM_RANKS, 2, SCRIPT, "torch", out, STEPS, EVERY]).stdout)


@pytest.mark.parametrize("how", ["torch", pytest.param("dcp", marks=pytest.mark.long)])
def test_a_rank_is_killed_between_a_save_and_its_file(
    holdfast: Cluster, tmp_path: Path, undisturbed: dict[int, str], how: str
) -> None:
    out = tmp_path / how
    job = holdfast.run(
        how, out, str(STEPS), str(EVERY), script=SCRIPT, nnodes=2, nproc=1, options=("--memory-checkpoints",)
    )
    killed_at = _kill_while_written(holdfast, job, out)
    assert job.exit_code() == 0
    began = [int(step) for step in BEGAN.findall(job.output())]
    # It goes on from the save whose file was not there yet, not from the one before.
    assert began == [0, killed_at], job.errors()[-2000:]
    losses = _losses(job.output())
    assert losses == undisturbed
    assert not list(out.rglob(".holdfast-*"))
    (incident,) = holdfast.incidents(job)
    assert incident["outcome"] == "recovered"


def test_a_node_is_lost_between_a_save_and_its_file(
    holdfast: Cluster, tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "torch"
    gate.touch()
    job = holdfast.run(
        *(gate, out, str(STEPS), str(STEPS - 10)),
        script=JOBS / "held_save.py",
        nnodes=2,
        nproc=1,
        options=("--memory-checkpoints", "--mesh", "dp=2"),
    )
    job.until("the save is answered", lambda: _is_on_its_way(_journal(holdfast, job)))
    lost, other = holdfast.members(job)
    copy = VaultMemory(holdfast, job, other, 0)
    job.until("another node has it", lambda: copy.has_newest(1))
    assert not (out / "ckpt.pt").exists()
    holdfast.power_off(lost)
    gate.unlink()
    assert job.exit_code() == 0
    began = [int(step) for step in BEGAN.findall(job.output())]
    assert began == [0, STEPS - 10], job.errors()[-2000:]
    assert _losses(job.output()) == undisturbed


def _kill_while_written(cluster: Cluster, job: Job, out: Path) -> int:
    """`kill -9` rank 0 while a save of it is on its way to the disk, the third or a later one; return its step."""
    rank = cluster.until("rank 0 is recorded", lambda: _pid_of_rank_0(cluster, job))
    journal = _journal(cluster, job)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        # A file takes some ten milliseconds.
        time.sleep(MOMENT_S)
        if _on_disk(out) < EVERY or not _is_on_its_way(journal):
            continue
        os.kill(rank, signal.SIGSTOP)
        until("the rank has stopped", lambda: _is_stopped(rank))
        if _is_on_its_way(journal):
            before = _on_disk(out)
            os.kill(rank, signal.SIGKILL)
            return before + EVERY
        os.kill(rank, signal.SIGCONT)
    raise AssertionError(f"no file was seen on its way\n{cluster.look()}")


def _journal(cluster: Cluster, job: Job) -> Path:
    return cluster.directory / "jobs" / job.name / "memory-checkpoints" / "rank-00000.json"


def _is_on_its_way(journal: Path) -> bool:
    """True from the answer of a save until the file that completes it is on the disk."""
    if not journal.exists():
        return False
    entry = json.loads(journal.read_bytes())
    path, before = list(entry["files"].items())[-1]
    found = os.stat(path) if os.path.exists(path) else None
    now = None if found is None else [found.st_ino, found.st_size, found.st_mtime_ns]
    return not entry["is_written"] and now == before


def _on_disk(out: Path) -> int:
    """The newest save that is whole on the disk."""
    if out.name == "torch":
        ckpt = out / "ckpt.pt"
        return int(torch.load(ckpt, mmap=True)["iter_num"]) if ckpt.exists() else 0
    return max((int(path.parent.name.removeprefix("step-")) for path in out.glob("step-*/.metadata")), default=0)


def _is_stopped(pid: int) -> bool:
    return all(
        (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        for thread in Path(f"/proc/{pid}/task").iterdir()
    )


def _pid_of_rank_0(cluster: Cluster, job: Job) -> int | None:
    started = cluster.events(job, "ranks_started")
    return next((each["pid"] for event in started for each in event["ranks"] if each["rank"] == 0), None)


def _losses(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in LOSS.findall(output)}
