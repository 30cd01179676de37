"""A node of a running job becomes slow: is it named, is it replaced, and is what that cost told rightly."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, NamedTuple

from launchers import Cluster, LauncherFailed
from strangers.cases import MEET, Case
from strangers.own_log import Restart, read_notes, restarts
from strangers.runs import START_LIMIT_S, Scene, await_in, fresh_place, started

SHAPE = ("--nnodes=2", "--nproc-per-node=1", *MEET)
CORES = 0.1
NAMED_LIMIT_S = 90.0
FREE_LIMIT_S = 60.0
NOTES_BEFORE = 80
"""Steps after the restart, before the node becomes slow: its pace is known by then."""


class Slowed(NamedTuple):
    """What came of it; seconds since the node became slow, None if it never was."""

    node: str
    named_s: float | None
    named: tuple[str, ...]
    evicted: tuple[str, ...]
    back_s: float | None
    restart: Restart | None
    told_lost: int | None
    failure: str = ""

    @property
    def is_right(self) -> bool:
        if self.restart is None or self.told_lost is None:
            return False
        is_true = abs(self.told_lost - self.restart.lost) <= 1
        return is_true and self.named == (self.node,) and self.evicted == (self.node,)


def slow(scene: Scene, case: Case, job: str) -> Slowed:
    """Run the script on two nodes, kill a rank so that the job shows how it resumes, and slow a node down."""
    place = fresh_place(scene, case, job)
    line = [*scene.command(case, job, launch=SHAPE), *case.script, *case.long]
    running, log = scene.running, place / case.log
    with started(line, place, scene.environment(holdfast=True)) as process:
        try:
            if not await_in(lambda: len(read_notes(case, log)) >= case.strike_at, process, START_LIMIT_S):
                return _failed("it did not get so far")
            os.kill(_rank_one(running, job)[0], signal.SIGKILL)
            if not await_in(lambda: bool(restarts(read_notes(case, log))), process, START_LIMIT_S):
                return _failed("it did not come back from a kill")
            again = len(read_notes(case, log)) + NOTES_BEFORE
            await_in(lambda: len(read_notes(case, log)) >= again, process, START_LIMIT_S)
            node = _rank_one(running, job)[1]
            running.holdfast("inject", "slow-node", "--node", node, "-o", f"cores={CORES}")
            began = time.monotonic()
            found = await_in(lambda: len(restarts(read_notes(case, log))) > 1, process, NAMED_LIMIT_S)
            back_s = time.monotonic() - began if found else None
            return _told(scene, case, job, node, back_s, restarts(read_notes(case, log))[1:])
        finally:
            with contextlib.suppress(LauncherFailed):
                running.holdfast("inject", "--undo")
                running.stop(job)
                _make_whole(running)


def _make_whole(running: Cluster) -> None:
    """Take evicted nodes back, and wait until all are free for the next job."""
    for row in running.query("select key from standby.nodes where blocked_until is not null"):
        running.holdfast("nodes", "release", row["key"])
    until = time.monotonic() + FREE_LIMIT_S
    while time.monotonic() < until:
        for row in running.query("select key from controller.jobs where exit_code is null"):
            running.holdfast("stop", row["key"])
        if all(row["state"] == "standby" for row in running.query("select state from standby.nodes")):
            return
        time.sleep(1.0)
    raise LauncherFailed("the nodes were not free again")


def _told(scene: Scene, case: Case, job: str, node: str, back_s: float | None, found: list[Restart]) -> Slowed:
    running = scene.running
    struck = running.query("select at from historian.events where type = 'fault_injected' order by at desc limit 1")
    located = running.events(job, "fail_slow_located")
    named = next((event for event in located if event.get("nodes")), {})
    evicted = tuple(str(event["node"]) for event in running.events(job, "eviction"))
    lost = _lost(running, job)
    named_s = (named["at"] - struck[0]["at"]).total_seconds() if named else None
    return Slowed(node, named_s, tuple(named.get("nodes", ())), evicted, back_s, found[0] if found else None, lost)


def _lost(running: Cluster, job: str) -> int | None:
    """Return the steps that the last restart lost, as Holdfast tells them once its first step is recorded."""
    text = "select lost_steps from historian.generations where job = $1 order by generation desc limit 1"
    until = time.monotonic() + 10.0
    rows: list[dict[str, Any]] = []
    while time.monotonic() < until:
        rows = running.query(text, job)
        if rows and rows[0]["lost_steps"] is not None:
            return int(rows[0]["lost_steps"])
        time.sleep(0.5)
    return None


def _rank_one(running: Cluster, job: str) -> tuple[int, str]:
    """Return the process of rank 1 in the newest generation, and its node."""
    events = running.await_event(job, "ranks_started", START_LIMIT_S)
    newest = max(event["generation"] for event in events)
    for event in events:
        for entry in event["ranks"]:
            if event["generation"] == newest and entry["rank"] == 1:
                return int(entry["pid"]), str(event["node"])
    raise LauncherFailed(f"job {job}: rank 1 is not recorded")


def _failed(reason: str) -> Slowed:
    return Slowed("", None, (), (), None, None, None, reason)
