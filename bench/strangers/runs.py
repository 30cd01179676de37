"""Runs of a stranger's script: under torchrun, under Holdfast, struck meanwhile; and what came of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import machine
from launchers import Cluster, LauncherFailed
from strangers.cases import Case
from strangers.own_log import Note, read_notes

POLL_S = 0.05
RUN_LIMIT_S = 180.0
START_LIMIT_S = 90.0
RECORD_LIMIT_S = 15.0
VICTIM = 1
"""The rank that is struck: not the one that writes the log."""


class Ended(NamedTuple):
    """A run: its exit code, what the script noted, and what its launcher printed."""

    code: int
    notes: list[Note]
    stderr: str
    took_s: float


class Struck(NamedTuple):
    """A run that was struck: also how long until it trained again, None if it did not, and what was told of it."""

    ended: Ended
    back_s: float | None
    at_note: int
    incidents: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    failure: str = ""


class Scene(NamedTuple):
    """What runs share: where they are, the cluster, and the Python of the scripts."""

    root: Path
    running: Cluster
    python: Path

    def environment(self, *, holdfast: bool) -> dict[str, str]:
        """Return what the caller of a launcher has: the environment is activated, nothing points at another cluster."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PET_"))}
        plain |= {"VIRTUAL_ENV": str(self.python.parents[1]), "PYTHONUNBUFFERED": "1"}
        plain["PATH"] = f"{self.python.parent}{os.pathsep}{plain.get('PATH', '')}"
        return plain | ({"HOLDFAST_DIR": str(self.running.directory)} if holdfast else {})

    def command(self, case: Case, job: str | None, launch: tuple[str, ...] | None = None) -> list[str]:
        """Return the launch line: torchrun's, or Holdfast's with the same flags."""
        flags = case.launch if launch is None else launch
        if job is None:
            return [str(self.python), "-m", "torch.distributed.run", *flags]
        return [sys.executable, "-m", "holdfast.cli", "run", "--name", job, *flags]


def fresh_place(scene: Scene, case: Case, name: str) -> Path:
    """Copy the script into a directory of its own, with its data, and what an earlier run left."""
    place = scene.root / name
    if case.source.is_dir():
        shutil.copytree(case.source, place)
    else:
        place.mkdir(parents=True)
        shutil.copy(case.source, place)
    plain = scene.environment(holdfast=False)
    if case.prepare:
        subprocess.run([str(scene.python), *case.prepare], cwd=place, check=True, env=plain, capture_output=True)
    if case.before:
        _end(scene, case, place, [*scene.command(case, None), *case.before], plain)
        # What counts is the log of the run that follows.
        (place / case.log).unlink()
    return place


def undisturbed(scene: Scene, case: Case, job: str | None) -> Ended:
    """Run the script to its end: under torchrun, or as a job."""
    place = fresh_place(scene, case, job or f"{case.name}-torchrun")
    line = [*scene.command(case, job), *case.script]
    return _end(scene, case, place, line, scene.environment(holdfast=job is not None))


def _end(scene: Scene, case: Case, place: Path, line: list[str], environment: dict[str, str]) -> Ended:
    with started(line, place, environment) as process:
        return _ended(case, place, process, time.monotonic())


def struck(scene: Scene, case: Case, job: str, fault: signal.Signals) -> Struck:
    """Run the script as a job, send a signal to a rank between two checkpoints, and wait for the end."""
    place = fresh_place(scene, case, job)
    line = [*scene.command(case, job), *case.script]
    with started(line, place, scene.environment(holdfast=True)) as process:
        began, log = time.monotonic(), place / case.log
        if not await_in(lambda: len(read_notes(case, log)) >= case.strike_at, process, START_LIMIT_S):
            return _told(scene, job, _ended(case, place, process, began), None, 0, "it did not get so far")
        pid = _victim(scene, case, job)
        os.kill(pid, fault)
        struck_at = time.monotonic()
        time.sleep(POLL_S)
        at_note = len(read_notes(case, log))
        has_new_life = await_in(lambda: _is_again(case, log, at_note), process, RUN_LIMIT_S)
        back_s = time.monotonic() - struck_at if has_new_life else None
        if not has_new_life:
            with contextlib.suppress(LauncherFailed):
                scene.running.holdfast("stop", job)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return _told(scene, job, _ended(case, place, process, began), back_s, at_note, "")


def _is_again(case: Case, log: Path, at_note: int) -> bool:
    """Return True if a later process has noted steps: numbers that do not follow, or any after a strike that held."""
    notes = read_notes(case, log)
    return any(after.step <= before.step for before, after in itertools.pairwise(notes)) and (len(notes) > at_note)


def _told(scene: Scene, job: str, ended: Ended, back_s: float | None, at_note: int, failure: str) -> Struck:
    with contextlib.suppress(LauncherFailed):
        # What comes before it in the record is there then.
        scene.running.await_event(job, "job_finished", RECORD_LIMIT_S)
    incidents = scene.running.query("select * from historian.incidents where job = $1 order by opened_at", job)
    generations = scene.running.query("select * from historian.generations where job = $1 order by generation", job)
    return Struck(ended, back_s, at_note, incidents, generations, failure)


def _victim(scene: Scene, case: Case, job: str) -> int:
    """Return the process that is struck."""
    started = scene.running.await_event(job, "ranks_started", START_LIMIT_S)
    ranks = {entry["rank"]: entry["pid"] for event in started for entry in event["ranks"]}
    if not case.child:
        return int(ranks[VICTIM])
    return [pid for pid in machine.children(ranks[0]) if case.child.encode() in _command_line(pid)][-1]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def started(line: list[str], place: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher in the background; its processes are ended with the block."""
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        process = subprocess.Popen(
            line, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    try:
        yield process
    finally:
        below = machine.descendants(process.pid)
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _ended(case: Case, place: Path, process: subprocess.Popen[bytes], began: float) -> Ended:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(RUN_LIMIT_S)
    code = process.poll()
    stderr = (place / "stderr").read_text(errors="replace")
    return Ended(-1 if code is None else code, read_notes(case, place / case.log), stderr, time.monotonic() - began)


def await_in(condition: Callable[[], object], process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for a condition while a launcher runs. Returns whether it came."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if condition():
            return True
        if process.poll() is not None:
            return bool(condition())
        time.sleep(POLL_S)
    return False
