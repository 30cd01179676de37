"""Every step is kept on a second node as well: what a lost node held comes from there, and no step is lost with it."""

from __future__ import annotations

import contextlib
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from job import Job
from records import check_record

from holdfast.node import frames
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import AskSteps, Join, ShardName, Steps
from holdfast.orders.backup import submission_ms

pytestmark = pytest.mark.e2e

KEEP = ("--keep-bytes", "2000000", "--step-s", "0.05")
NEVER = ("--checkpoint-every", "100000")


def first_steps(job: Job, after: int) -> set[int]:
    """With which step each rank went on after this generation."""
    return {next(note.step for note in job.trained(rank) if note.generation > after) for rank in range(job.world_size)}


def ranks_fetched(cluster: Cluster, job: Job, step: int) -> set[int]:
    """The ranks whose shards of this step came from another node."""
    fetched = [event for event in cluster.events(job, "shards_fetched") if event["step"] == step]
    return {rank for event in fetched for rank in event["ranks"]}


def backed_up(cluster: Cluster, job: Job, node: str) -> int:
    """The newest step of a node that is known to be on another one."""
    steps = [event["step"] for event in cluster.events(job, "copies_measured") if event["node"] == node]
    return max(steps, default=0)


def until_backed_up(cluster: Cluster, job: Job) -> int:
    """Wait until all of the job's nodes have copies on others; the newest step that all of them have there."""
    members = cluster.members(job)
    cluster.until("all nodes have copies elsewhere", lambda: all(backed_up(cluster, job, node) for node in members))
    return min(backed_up(cluster, job, node) for node in members)


def test_a_lost_node_s_shards_come_from_the_node_that_keeps_them(holdfast: Cluster) -> None:
    job = holdfast.run(*KEEP, *NEVER)
    members = holdfast.members(job)
    kept = until_backed_up(holdfast, job)
    holdfast.power_off(members[1])
    job.until_step(kept + 5, generation=2)

    # Nothing was on the disk: without the copies it would have begun anew.
    (first,) = first_steps(job, after=1)
    assert first > kept
    (standby,) = holdfast.until("the new members are recorded", lambda: set(holdfast.members(job)) - set(members))
    # A rank that was a step ahead has that one fetched as well.
    holdfast.until("what was fetched is recorded", lambda: ranks_fetched(holdfast, job, first - 1) == {2, 3})
    assert {(event["node"], event["keeper"]) for event in holdfast.events(job, "shards_fetched")} == {
        (standby, members[0])
    }
    holdfast.until("the new node has copies elsewhere", lambda: backed_up(holdfast, job, standby) > kept)
    job.finish()
    check_record(holdfast, job)
    # All four are replicas of each other: what they have in common was sent by one of them.
    assert any(event.get("replicated_bytes") for event in holdfast.events(job, "copies_measured"))


def test_a_damaged_shard_is_mended_from_its_copy(holdfast: Cluster) -> None:
    job = holdfast.run(*KEEP, *NEVER)
    kept = until_backed_up(holdfast, job)
    node = holdfast.members(job)[1]
    ranks = job.pids()
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    damage_shards(holdfast, job, node, rank=3)
    killed = job.kill_rank(3)
    for pid in set(ranks) - {killed.pid}:
        # Its agent ends the others because of its death, and may be sooner.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    job.until_step(kept + 5, generation=2)
    # What is restored is checked by the script as well: a wrong tensor would end it.
    assert min(first_steps(job, after=1)) > kept
    # Each of the rank's shards is damaged: its node notices that, and its keeper if one was on its way.
    holdfast.until("the damage is recorded", lambda: node in {damage["node"] for damage in damages(holdfast, job)})
    assert {(damage["rank"], damage["held_by"]) for damage in damages(holdfast, job)} == {(3, node)}
    job.finish()
    check_record(holdfast, job)


def damages(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    return cluster.events(job, "shard_damaged")


def damage_shards(cluster: Cluster, job: Job, node: str, rank: int) -> None:
    """Flip a bit in each shard of a stopped rank that the memory of its node's vault holds."""
    (started, *_) = cluster.events(job, "generation_started")
    submitted_ms = submission_ms(datetime.fromisoformat(started["submitted_at"]))
    name = ShardName(job=job.name, submitted_ms=submitted_ms, world_size=job.world_size, rank=rank)
    with vault_socket.connect(cluster.directory / "nodes" / node) as link:
        vault = vault_socket.peer_pid(link)
        # It answers when the save that may be under way is sealed.
        for request in (Join(name=name, generation=1, pid=os.getpid()), AskSteps()):
            frames.send(link, request)
            answer, _ = frames.receive(link, messages.answers)
        assert isinstance(answer, Steps) and answer.sealed
    pieces: dict[int, Path] = {}
    for entry in Path(f"/proc/{vault}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that has just ended
            if f"-{rank} (" in os.readlink(entry):
                pieces[entry.stat().st_ino] = entry  # each piece of memory has more than one
    for entry in pieces.values():
        memory = os.open(entry, os.O_RDWR)
        # One that is just being made for a later step has none there yet.
        for byte in os.pread(memory, 1, 1_000_000):
            os.pwrite(memory, bytes([byte ^ 1]), 1_000_000)
        os.close(memory)
