"""The cluster of `chaos.py`, its job, the same training undisturbed, and the record's decisions made again."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chaos_checks import Training
from chaos_clocks import build
from chaos_faults import small_disks
from launchers import Cluster, LauncherFailed, Place, torchrun

JOB = "chaos"
MEMBERS, NODES = 2, 3
SHAPE = ("--ckpt-every", "0")
CLOCKS = "clocks"
START_S = 120.0
STOP_S = 60.0


def judge_decisions(running: Cluster) -> list[str]:
    """Return a violation unless every recorded decision comes out again when the planner gets the recorded events."""
    try:
        running.holdfast("whatif", "--job", JOB, "--json")
    except LauncherFailed as error:
        return [f"recorded decisions do not follow from the record: {error}"]
    return []


def undisturbed(root: Path, steps: int) -> Training:
    """Train the same steps under torchrun. Raises LauncherFailed if that takes too long."""
    place = Place.fresh(root, "undisturbed")
    training = Training(place.record, MEMBERS)
    until = time.monotonic() + START_S + 0.2 * steps
    with torchrun(MEMBERS, place, *SHAPE, steps=steps, restarts=0):
        while not all(training.ended):
            if time.monotonic() > until:
                raise LauncherFailed(f"the undisturbed training of {steps} steps did not end")
            time.sleep(1)
            training.read()
    return training


@contextlib.contextmanager
def fresh_cluster(up: tuple[str, ...]) -> Iterator[tuple[Cluster, Path]]:
    """A cluster in a temporary directory, which stays if anything is wrong: for its logs."""
    root = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    running = Cluster(root / "cluster", NODES)
    running.environment |= build(root / CLOCKS)
    with small_disks(running.directory):
        try:
            running.holdfast("up", "--detach", *up)
            yield running, root
        finally:
            running.close()
            with contextlib.suppress(LauncherFailed):
                running.holdfast("down", limit_s=STOP_S)
