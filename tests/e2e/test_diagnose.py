"""`holdfast diagnose` on a whole cluster: sound nodes, and real faults of one of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import HOLDFAST, Cluster
from waiting import until

from holdfast.node.kernel import is_stopped, started_ticks

pytestmark = pytest.mark.e2e

NODES = ["node-0", "node-1", "node-2"]


def diagnose(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`holdfast diagnose --json`: its exit code, and what it prints."""
    done = cluster.command("diagnose", "--json", *arguments, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def check_rank(cluster: Cluster, node: str) -> int:
    """The process that checks a node, as soon as it is there."""
    zygote = int((cluster.layout.node(node) / "zygote.pid").read_text())

    def found() -> int:
        for pid in children(zygote):
            with contextlib.suppress(OSError):
                if re.fullmatch(r"rank-\d+\n", Path(f"/proc/{pid}/comm").read_text()):
                    return pid
        return 0

    return until(f"checks run on {node}", found)


def test_sound_nodes_pass_and_are_given_back(holdfast: Cluster) -> None:
    code, told = diagnose(holdfast)
    assert (code, told["passed"]) == (0, True), told
    assert told["nodes"] == NODES and told["verdict"]["cleared"] == NODES
    assert {result["status"] for result in told["results"]} <= {"passed", "skipped"}
    # Answers are kept by the program that computed them.
    answers = [result for result in told["results"] if result.get("digest")]
    assert answers and all(result.get("program") for result in answers)
    # What passed is folded into the result that ends its node's run.
    count = (
        "select coalesce(sum(1 + coalesce(jsonb_array_length(body->'folded'), 0)), 0)::int as n "
        "from historian.events where job = $1 and type = 'diagnostic_result'"
    )
    holdfast.until(
        "the results are recorded", lambda: holdfast.query(count, told["job"])[0]["n"] == len(told["results"])
    )
    assert not holdfast.query("select 1 from controller.incidents where job = $1", told["job"])
    holdfast.until("the nodes are free", lambda: {node["state"] for node in holdfast.nodes().values()} == {"standby"})


def test_a_node_whose_checks_stand_still_is_named(holdfast: Cluster) -> None:
    command = [HOLDFAST, "diagnose", "--dir", str(holdfast.directory), "--json", "--suite", "network", "--limit-s", "4"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid = check_rank(holdfast, "node-1")
    for stopped in (pid, *children(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGSTOP)
    output, errors = running.communicate(timeout=90)
    assert running.returncode == 1, errors
    verdict = json.loads(output)["verdict"]
    assert [suspect["node"] for suspect in verdict["suspects"]] == ["node-1"], output
    assert verdict["suspects"][0]["reason"] == "it did not answer in time"
    holdfast.until("the stopped process is gone", lambda: started_ticks(pid) is None or not is_stopped(pid))


@pytest.fixture
def full_disk(holdfast: Cluster) -> Iterator[str]:
    """A node whose directory for reports has room for its reports, and for nothing else."""
    directory = holdfast.layout.node("node-2") / "reports"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no right to mount a tmpfs: {mounted.stderr.strip()}")
    yield "node-2"
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_named_with_its_directory(holdfast: Cluster, full_disk: str) -> None:
    code, told = diagnose(holdfast, "--nodes", f"node-0,{full_disk}")
    assert code == 1
    (suspect,) = told["verdict"]["suspects"]
    assert (suspect["node"], suspect["symptom"]) == (full_disk, "insufficient_disk_space")
    assert "No space left on device" in suspect["reason"]
    assert told["verdict"]["cleared"] == ["node-0"]


def test_a_node_that_a_job_uses_is_refused_and_ctrl_c_gives_nodes_back(holdfast: Cluster) -> None:
    running = subprocess.Popen(
        [HOLDFAST, "diagnose", "--dir", str(holdfast.directory), "--nodes", "node-1", "--suite", "full"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # What stands still is there for as long as it takes to look at it.
    os.kill(check_rank(holdfast, "node-1"), signal.SIGSTOP)
    refused = holdfast.command("diagnose", "--nodes", "node-1", check=False)
    assert refused.returncode == 2
    assert "node-1 is used by job diagnose-" in refused.stderr
    unknown = holdfast.command("diagnose", "--nodes", "node-77", check=False)
    assert (unknown.returncode, "there is no node node-77" in unknown.stderr) == (2, True)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    holdfast.until("the node is free", lambda: holdfast.nodes()["node-1"]["state"] == "standby")


def test_a_node_on_the_blocklist_is_checked_and_stays_on_it(holdfast: Cluster) -> None:
    # As in test_escalation.py: the second failure comes before the job is past the first one.
    job = holdfast.run("--checkpoint-every", "0", "--step-s", "0.005", "--later-step-s", "1.0")
    job.until_step(200)
    node = holdfast.members(job)[1]
    job.kill_rank(2)
    job.until_step(1, generation=2)
    job.kill_rank(3)
    # The job has all other nodes: none is left for a test beside training.
    holdfast.until("the node is evicted", lambda: holdfast.nodes()[node]["state"] == "evicted")
    code, told = diagnose(holdfast, "--nodes", node, "--suite", "gpu")
    assert (code, told["verdict"]["cleared"]) == (0, [node])
    holdfast.until("it is evicted as before", lambda: holdfast.nodes()[node]["state"] == "evicted")
    assert holdfast.nodes()[node]["blocked_until"] is not None
