"""Every step is kept in the nodes' memory, 8 MB for each rank: a killed rank loses none of them."""

from __future__ import annotations

import pytest
from cluster import Cluster
from job import Job
from records import check_record
from vault_memory import lose

from holdfast.node.vault import vault_socket

pytestmark = pytest.mark.e2e

# A step is copied while the next one is made, and lost if its rank is killed before that is done: the next one takes
# long enough for a busy machine, too.
KEEP = ("--keep-bytes", "8000000", "--checkpoint-every", "40", "--step-s", "0.1")


def first_step(job: Job, generation: int) -> int:
    """The first step that all ranks did in a generation; they all began with the same."""
    (step,) = {next(note.step for note in job.trained(rank) if note.generation == generation) for rank in range(4)}
    return step


def test_a_killed_rank_goes_on_from_the_step_that_it_had_done(holdfast: Cluster) -> None:
    job = holdfast.run(*KEEP)
    job.until_step(15)
    for generation, rank in ((2, 3), (3, 0), (4, 2)):
        killed = job.kill_rank(rank)
        job.until_step(killed.step + 5, generation=generation)
        # At most the step after which it was killed before it could keep it; nothing of this has been on a disk.
        assert killed.step <= first_step(job, generation) <= killed.step + 2
        holdfast.until("the incident is closed", lambda: holdfast.incidents(job)[-1]["closed_at"])
    job.finish()
    check_record(holdfast, job)
    assert [incident["outcome"] for incident in holdfast.incidents(job)] == ["recovered"] * 3


def test_without_its_vault_a_job_trains_on_and_falls_back_to_the_disk(holdfast: Cluster) -> None:
    job = holdfast.run(*KEEP)
    job.until_step(50)
    node = holdfast.members(job)[0]
    vault = vault_pid(holdfast, node)
    lose(vault)
    before = job.pids()
    job.until_step(job.step() + 10)
    assert job.pids() == before
    holdfast.until("there is another vault", lambda: vault_pid(holdfast, node) not in (0, vault))

    # The disk has step 40; what the other node keeps of this one's may be newer.
    killed = job.kill_rank(3)
    job.until_step(killed.step + 5, generation=2)
    assert first_step(job, 2) > 40

    # And from then on every step is kept again.
    killed = job.kill_rank(1)
    job.until_step(killed.step + 5, generation=3)
    assert killed.step <= first_step(job, 3) <= killed.step + 2
    job.finish()
    check_record(holdfast, job)


def vault_pid(cluster: Cluster, node: str) -> int:
    try:
        link = vault_socket.connect(cluster.directory / "nodes" / node)
    except OSError:
        return 0
    with link:
        return vault_socket.peer_pid(link)
