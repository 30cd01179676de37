"""`holdfast status`, `logs` and `down` against a real cluster."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_running import Cluster, alive, cluster, until

from holdfast.embedded.control import PowerOff, ask
from holdfast.embedded.processes.proctree import node_processes

pytestmark = pytest.mark.integration

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def holdfast(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [HOLDFAST, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), "--nodes", "2") as running:
        yield running


def test_status_shows_every_child_and_fails_when_one_is_off(running_cluster: Cluster) -> None:
    directory = running_cluster.layout.root
    shown = holdfast("status", "--dir", directory)
    assert shown.returncode == 0, shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert {"postgres", "nats", "controller", "node-0", "node-1"} <= rows.keys()
    assert str(running_cluster.pid("nats")) in rows["nats"]

    ask(running_cluster.layout, PowerOff(node="node-1"))
    told = holdfast("status", "--json", "--dir", directory)
    assert told.returncode == 1
    data = json.loads(told.stdout)
    assert (data["running"], data["ready"], data["supervisor_pid"]) == (True, True, running_cluster.process.pid)
    assert {child["name"]: child["state"] for child in data["children"]}["node-1"] == "off"


def test_logs_of_one_of_all_and_of_nobody(running_cluster: Cluster) -> None:
    directory = running_cluster.layout.root
    assert holdfast("logs", "controller", "-n", "1", "--dir", directory).stdout == "service at work\n"
    everything = holdfast("logs", "-n", "1", "--dir", directory).stdout
    assert "controller | service at work" in everything and "postgres   | " in everything
    unknown = holdfast("logs", "nobody", "--dir", directory)
    assert unknown.returncode == 1
    assert "there is no log of 'nobody'" in unknown.stderr and "controller, nats" in unknown.stderr


def test_logs_are_followed_until_ctrl_c(running_cluster: Cluster) -> None:
    following = subprocess.Popen(
        [HOLDFAST, "logs", "controller", "-f", "-n", "0", "--dir", str(running_cluster.layout.root)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert following.stdout is not None
    # It is reading once it has the file open.
    log = str(running_cluster.layout.log("controller"))
    until(lambda: any(os.path.realpath(fd) == log for fd in Path(f"/proc/{following.pid}/fd").iterdir()))
    controller = running_cluster.pid("controller")
    os.kill(controller, signal.SIGKILL)
    running_cluster.mended("controller", controller)
    assert following.stdout.readline() == "service at work\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(timeout=60) == 0


@pytest.mark.parametrize("command", ["status", "logs", "down"])
def test_where_there_is_no_cluster_the_way_to_one_is_told(tmp_path: Path, command: str) -> None:
    refused = holdfast(command, "--dir", tmp_path)
    assert refused.returncode == 1
    assert f"there is no cluster in {tmp_path}" in refused.stderr and "holdfast up" in refused.stderr


def test_down_returns_when_everything_has_ended(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        pids = [record.pid for record in running.info.children.values()]
        ended = holdfast("down", "--dir", tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "its data is kept" in ended.stdout
        assert not [pid for pid in pids if alive(pid)]
        assert running.wait() == 0
    assert "not running" in holdfast("status", "--dir", tmp_path).stdout
    assert "No cluster is running" in holdfast("down", "--dir", tmp_path).stdout


def test_down_clears_up_after_a_dead_supervisor(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        node = running.layout.node("node-0")
        left = node_processes(node, None)
        running.process.kill()
        running.process.wait()
        ended = holdfast("down", "--dir", tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "was dead" in ended.stdout
        assert not [pid for pid in left if alive(pid)]


def test_up_explains_itself() -> None:
    told = holdfast("up", "--help")
    assert told.returncode == 0
    for word in ("--nodes", "--detach", "--postgres-port", "--nats-port", "HOLDFAST_DIR", "Ctrl-C"):
        assert word in told.stdout
