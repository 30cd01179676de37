"""Nodes are lost two at a time, in the middle of a save, of a transfer, of a restore: the newest whole step is left.

Four nodes, pp=2,dp=2: nodes 0 and 3 keep each other's copies, and nodes 1 and 2.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from cluster import JOBS, Cluster, cluster
from job import Job
from records import check_record
from vault_memory import VaultMemory, lose

from holdfast.embedded.processes.proctree import node_processes
from holdfast.node.vault import vault_socket

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NODES = 4
MESH = "pp=2,dp=2"
SHARD_BYTES = 16 << 20
"""Some milliseconds under way wherever it goes: long enough to be met there."""
PERSIST_EVERY = 60
WARM_RANKS = Path(__file__).parents[1] / "warm_ranks.py"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("six"), nodes=6) as running:
        yield running


@pytest.fixture
def six_nodes(six: Cluster) -> Cluster:
    """Four for a job and two standbys."""
    six.make_whole()
    return six


class Scene:
    """A job of one rank on each node. It trains up to a step and no further, so that it is known what each node has."""

    def __init__(self, running: Cluster, directory: Path, *arguments: str, script: Path, persist: str) -> None:
        self.running = running
        self._gate = directory / "gate"
        self.open_up_to(0)
        options = ["--mesh", MESH, "--persist-every", persist]
        self.job: Job = running.run(
            *arguments, "--gate", self._gate, script=script, nnodes=NODES, nproc=1, options=options
        )

    def open_up_to(self, step: int) -> None:
        """Let it train up to here."""
        unfinished = self._gate.with_suffix(".new")
        unfinished.write_text(str(step))
        unfinished.rename(self._gate)

    def open(self) -> None:
        """Let it train on for ever."""
        self._gate.unlink()

    def train_to(self, step: int) -> None:
        """Let it train up to here, and every node send its last two steps to its keeper.

        One after the other: a node that has a newer step to send may leave one out.
        """
        for number in (step - 1, step):
            self.open_up_to(number)
            self.job.until_step(number, self.job.generation())
            for rank in range(NODES):
                has_copy = partial(self.of(rank, on=NODES - 1 - rank).has_newest, number)
                self.running.until(f"step {number} of rank {rank} is with its keeper", has_copy)

    def of(self, rank: int, *, on: int) -> VaultMemory:
        """What a member, by its node rank, has of a rank."""
        return VaultMemory(self.running, self.job, self.members[on], rank)

    @property
    def members(self) -> list[str]:
        """The job's nodes by node rank."""
        return self.running.members(self.job)

    def lose(self, *nodes: str) -> None:
        """Kill nodes, by name."""
        for node in nodes:
            self.running.power_off(node)

    def bring_back(self, node: str) -> None:
        """Have a node that was lost and replaced come back as a standby."""
        self.running.power_on(node)
        self.running.until(f"{node} is a standby", lambda: self._state(node) == "standby")

    def _state(self, node: str) -> str:
        """The state of a node; may be asked by several threads, unlike the record."""
        listed = json.loads(self.running.command("nodes", "--json").stdout)
        return next(each["state"] for each in listed if each["node"] == node)

    def went_on_with(self, after: int) -> set[int]:
        """With which step each rank went on after this generation."""
        self.job.until("it goes on", lambda: self.job.generation() > after)
        notes = [self.job.trained(rank) for rank in range(NODES)]
        return {next(note.step for note in trained if note.generation > after) for trained in notes}


def test_whatever_a_lost_node_was_doing_its_job_goes_on_from_the_newest_whole_step(
    six_nodes: Cluster, tmp_path: Path
) -> None:
    arguments = ("--keep-bytes", str(SHARD_BYTES), "--distinct", "--checkpoint-every", "100000")
    scene = Scene(six_nodes, tmp_path, *arguments, script=JOBS / "fold.py", persist=str(PERSIST_EVERY))
    job = scene.job

    # A whole pipeline group, one node of which is just restoring what its vault has lost.
    step = 10
    while True:
        scene.train_to(step)
        members, generation = scene.members, job.generation()
        scene.of(0, on=3).flip_a_bit(step)
        empty_vault(six_nodes, members[0])
        job.kill_rank(1)
        if scene.of(0, on=0).stop_halfway(step, step - 1):
            break
        job.until_step(step, generation + 1)
        step += 2
    scene.lose(members[0], members[2])
    # The only copy that is left of the newest step is damaged. Nothing is on the disk.
    assert scene.went_on_with(after=generation) == {step}
    damage = six_nodes.until("the damage is recorded", lambda: six_nodes.events(job, "shard_damaged"))
    assert {(each["rank"], each["held_by"]) for each in damage} == {(0, members[3])}

    # Until the next loss is noticed, there is time for the nodes of the last one to come back.
    with ThreadPoolExecutor() as beside:
        coming = beside.map(scene.bring_back, (members[0], members[2]))  # whoever lists them hears what failed

        # A whole data-parallel group: one node in the middle of a save, its neighbour in the middle of a transfer.
        members, generation = scene.members, job.generation()
        saving, receiving = scene.of(0, on=0), scene.of(1, on=2)
        while True:
            scene.train_to(step + 2)
            saving.stop()
            step += 3
            scene.open_up_to(step)
            is_receiving = receiving.stop_halfway(step)
            if saving.stop_halfway(step) and is_receiving:
                break
            saving.go_on()
            receiving.go_on()
        scene.lose(*members[:2])
        receiving.go_on()
        assert step < PERSIST_EVERY
        assert scene.went_on_with(after=generation) == {step}
        list(coming)
        coming = beside.map(scene.bring_back, members[:2])

        # Of two nodes that keep each other's copies nothing is left but the disk.
        scene.open_up_to(PERSIST_EVERY + 5)
        on_disk = "select step from ckpt.restorable where job = $1 and tier = 'disk'"
        (kept,) = six_nodes.until("a step is on the disk", lambda: six_nodes.query(on_disk, job.name))
        job.until_step(PERSIST_EVERY + 5)
        members, generation = scene.members, job.generation()
        scene.lose(members[0], members[3])
        assert scene.went_on_with(after=generation) == {kept["step"] + 1} == {PERSIST_EVERY + 1}
        list(coming)
        coming = beside.map(scene.bring_back, (members[0], members[3]))

        scene.open()
        job.finish()
        # What a lost node had not said yet, it says now.
        list(coming)
    check_record(six_nodes, job)


def test_a_model_that_loses_a_pipeline_group_ends_with_the_loss_of_an_undisturbed_run(
    six_nodes: Cluster, tmp_path: Path
) -> None:
    script, arguments = JOBS / "gpt.py", ("--steps=20", "--ckpt-every=0", f"--mesh={MESH}")
    scene = Scene(six_nodes, tmp_path, *arguments, script=script, persist="never")
    scene.train_to(10)
    members = scene.members
    scene.lose(members[0], members[2])
    scene.open()

    # Until the loss is noticed, there is time for a run without any.
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    own = (f"--journal={undisturbed}", f"--gate={tmp_path / 'none'}", f"--ckpt-dir={undisturbed}")
    output = subprocess.run(
        (sys.executable, WARM_RANKS, str(NODES), script, *own, *arguments),
        env={key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout

    assert scene.job.exit_code() == 0
    assert scene.went_on_with(after=1) == {11}
    for rank in range(NODES):
        lines = (undisturbed / f"rank-{rank}").read_text().splitlines()
        losses = {int(step): int(loss) for _, step, _, loss in map(str.split, lines)}
        trained = scene.job.trained(rank)
        assert {note.step for note in trained} == {*range(1, 21)}
        assert [note.folded for note in trained] == [losses[note.step] for note in trained]
    assert scene.job.output().splitlines()[-1] == output.splitlines()[-1]


def test_a_job_waits_for_the_nodes_that_have_its_only_steps_while_others_hold_their_places(
    six_nodes: Cluster, tmp_path: Path
) -> None:
    job = six_nodes.run(
        "--keep-bytes", "8000000", "--checkpoint-every", "0", "--step-s", "0.05", nproc=1, options=["--mesh", "dp=2"]
    )
    job.until_step(20)
    away = six_nodes.members(job)
    stopped = [pid for node in away for pid in node_processes(six_nodes.layout.node(node), None)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        paused = six_nodes.until("it waits", lambda: six_nodes.events(job, "suspension"))
        assert f"for {', '.join(away)}, which left" in paused[-1]["reason"]
        shown = six_nodes.command("status", check=False).stdout
        assert f"Job {job.name}: {paused[-1]['reason']}" in shown
        reached = job.trained(0)[-1].step
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    generation = job.generation()
    job.until("it goes on elsewhere", lambda: job.generation() > generation)
    assert min(note.step for note in job.trained(0) if note.generation > generation) > reached
    assert not set(away) & set(six_nodes.members(job))
    job.finish()
    check_record(six_nodes, job)


def empty_vault(running: Cluster, node: str) -> None:
    """Kill a node's vault, and wait for the one that takes its place with nothing in it."""
    directory = running.directory / "nodes" / node
    with vault_socket.connect(directory) as link:
        killed = vault_socket.peer_pid(link)
    lose(killed)

    def has_another() -> bool:
        try:
            link = vault_socket.connect(directory)
        except OSError:
            return False
        with link:
            return vault_socket.peer_pid(link) != killed

    running.until("there is another vault", has_another)
