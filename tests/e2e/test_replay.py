"""A machine that now and then computes one bit wrongly, and that no check of a machine by itself finds.

Four nodes, pp=2,dp=2: the groups of a replay are the halves of the job, cut in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import JOBS, Cluster, cluster
from records import check_record

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NODES = 4
GPT = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
SMALL = ("--layers=2", "--width=32", "--heads=2", "--tokens=16", "--batch=2", "--lr=0.01", "--log-every=10")
DISK, LAST = 20, 140
"""Every so many steps one is on the disk; the job's end."""
BAD_STEPS = 20
"""Training goes so far while the machine goes wrong: further it would never be seen."""


@pytest.fixture
def five_nodes(tmp_path: Path) -> Iterator[Cluster]:
    """Four for a job and one standby."""
    with cluster(tmp_path / "five", NODES + 1) as running:
        yield running


class Scene:
    """A job that trains up to a gate, on machines of which one may go wrong."""

    def __init__(self, running: Cluster, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._looks = 0
        self.running = running
        self.open_up_to(DISK + 10)
        self.job = running.run(
            *SMALL,
            f"--steps={LAST}",
            f"--ckpt-every={DISK}",
            *("--train", GPT),
            *("--gate", directory / "gate"),
            *("--bad-node", directory / "bad"),
            script=JOBS / "flipping_gpt.py",
            nnodes=NODES,
            nproc=1,
            options=["--mesh", "pp=2,dp=2", "--persist-every", "never"],
        )

    def open_up_to(self, step: int) -> None:
        """Let it train up to here."""
        self._step = step
        unfinished = self._directory / "gate.new"
        unfinished.write_text(str(step))
        unfinished.rename(self._directory / "gate")

    def has_certified(self, step: int) -> bool:
        """Whether this step is known to be clean. That is said when steps are made, two seconds apart at least: now and
        then a look lets it make one more."""
        self._looks += 1
        if self._looks % 3 == 0:
            self.open_up_to(min(self._step + 1, LAST - 2 * BAD_STEPS))
        return any(it["step"] >= step for it in self.running.events(self.job, "steps_certified"))

    def go_wrong(self, node: str) -> None:
        """From now on this machine computes wrongly."""
        (self._directory / "bad").write_text(node)
        self.open_up_to(self._step + BAD_STEPS)

    def final_loss(self) -> str:
        """Let it train to its end."""
        self.open_up_to(LAST)
        assert self.job.exit_code() == 0
        (loss,) = re.findall(r"done final_loss=(\S+)", self.job.output())
        return loss


def test_the_machine_is_found_by_replay_and_the_job_ends_with_the_undisturbed_result(
    five_nodes: Cluster, tmp_path: Path
) -> None:
    undisturbed = Scene(five_nodes, tmp_path / "undisturbed").final_loss()
    scene = Scene(five_nodes, tmp_path / "disturbed")
    five_nodes.until("a step on the disk is certified", lambda: scene.has_certified(DISK))
    nodes = five_nodes.members(scene.job)
    culprit = nodes[2]
    scene.go_wrong(culprit)

    (ended,) = five_nodes.until("the replay is over", lambda: five_nodes.events(scene.job, "replay_ended"))
    assert ended["suspects"] == [culprit], ended
    (checked,) = five_nodes.events(scene.job, "checks_ended")
    assert not checked.get("suspects"), checked
    groups = [it["groups"] for it in five_nodes.events(scene.job, "replay_started")]
    assert groups[:2] == [[nodes[:2], nodes[2:]], [nodes[::2], nodes[1::2]]]
    # Each rank of each group began behind the same step on the disk, one that is certified.
    (first,) = {it["replay"]["first"] for it in five_nodes.events(scene.job, "replay_result")}
    assert first - 1 in range(DISK, five_nodes.events(scene.job, "bad_number")[-1]["certified"] + 1, DISK)
    assert [it["node"] for it in five_nodes.events(scene.job, "eviction")] == [culprit]

    assert scene.final_loss() == undisturbed
    (incident,) = five_nodes.incidents(scene.job)
    assert incident["outcome"] == "recovered"
    assert "dual-phase replay" in five_nodes.command("explain", incident["key"]).stdout
    check_record(five_nodes, scene.job)
