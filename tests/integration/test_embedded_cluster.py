"""The embedded cluster as its user sees it: started, broken, stopped and started again, all of it for real."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import nats
import pytest
from embedded_running import Cluster, alive, cluster, until

from holdfast.embedded.control import AddNode, PowerOff, PowerOn, Renew, Status, Stop, ask
from holdfast.embedded.errors import ControlRefused, NoCluster
from holdfast.embedded.layout import ClusterInfo
from holdfast.embedded.processes.leftovers import SHARED_MEMORY
from holdfast.embedded.processes.proctree import node_processes
from holdfast.node.kernel import started_ticks

pytestmark = pytest.mark.integration


async def write_note(info: ClusterInfo, note: str) -> None:
    connection = await asyncpg.connect(info.database_urls["admin"])
    await connection.execute("insert into kept values ($1)", note)
    await connection.close()
    client = await nats.connect(info.nats_url)
    bus = client.jetstream()
    await bus.add_stream(name="KEPT", subjects=["kept.>"])
    await bus.publish("kept.note", note.encode())
    await client.close()


async def read_notes(info: ClusterInfo) -> tuple[list[str], int]:
    connection = await asyncpg.connect(info.database_urls["admin"])
    rows = await connection.fetch("select note from kept")
    await connection.close()
    client = await nats.connect(info.nats_url)
    kept = await client.jetstream().stream_info("KEPT")
    await client.close()
    return [row["note"] for row in rows], kept.state.messages


def test_ctrl_c_ends_everything_and_a_second_start_goes_on(running_cluster: Cluster, tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as first:
        assert ask(first.layout, AddNode()).node == "node-1"
        assert first.child("node-1").state == "ready"
        before = first.info
        assert len({*ports(before), *ports(running_cluster.info)}) == 6, "two clusters live side by side"
        pids = [first.process.pid, *(record.pid for record in before.children.values())]
        on_nodes = [pid for node in before.nodes for pid in node_processes(first.layout.node(node), None)]
        assert len(before.children) == 6 and len(on_nodes) == 2 * 5
        born = {name: record.started_ticks for name, record in before.children.items()}
        assert born["nursery"] <= min(born.values()), "what needs no server does not wait for one"
        asyncio.run(write_note(before, "first"))
        assert first.end() == 0
        assert not [pid for pid in (*pids, *on_nodes) if alive(pid)]
        assert all("asked to stop" in first.layout.log(node).read_text() for node in before.nodes)
        ends = [line.removesuffix(" stopped") for line in first.lines if line.endswith(" stopped")]
        assert [set(ends[:2]), set(ends[2:4])] == [{"node-0", "node-1"}, {"controller", "nursery"}]
        assert ends[4:] == ["nats", "postgres"]
    assert ClusterInfo.load(tmp_path).pid is None
    assert all(child.state == "ready" for child in ask(running_cluster.layout, Status()).children)

    # As after a reboot: the number in the file now belongs to a live process of the same user.
    data = tmp_path / "postgres" / "data"
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n1\n{before.ports.postgres}\n\n127.0.0.1\n")
    with cluster(tmp_path) as second:
        after = second.info
        assert (after.ports, after.nats_url, after.nodes) == (before.ports, before.nats_url, ["node-0", "node-1"])
        assert second.child("postgres").restarts == 0
        assert asyncio.run(read_notes(after)) == (["first"], 1)
    smaller = Cluster(tmp_path, "--nodes", "1")
    assert smaller.wait() == 1
    assert "this cluster has 2 nodes" in smaller.lines[-1]


def ports(info: ClusterInfo) -> list[int]:
    return [getattr(info.ports, name) for name in info.ports.__struct_fields__]


@pytest.mark.parametrize("name", ["postgres", "nats", "controller", "node-0"])
def test_a_killed_child_is_noticed_and_mended(running_cluster: Cluster, name: str) -> None:
    before, said = running_cluster.child(name), running_cluster.layout.log("supervisor")
    assert before.pid is not None
    told = len(said.read_text())
    os.kill(before.pid, signal.SIGKILL)
    after = running_cluster.mended(name, before.pid)
    ends = re.findall(rf" {name}: (.*); restarting", said.read_text()[told:])
    assert ends[0] == "killed by SIGKILL"
    # A new postmaster gives up as long as a backend of the killed one holds the shared memory.
    assert set(ends[1:]) <= ({"exit code 1"} if name == "postgres" else set())
    assert (after.restarts, after.last_exit) == (before.restarts + len(ends), ends[-1])
    assert running_cluster.info.children[name].pid == after.pid


def test_a_full_disk_ends_no_cluster(small_disk: Path) -> None:
    with cluster(small_disk / "cluster", "--nodes", "1") as running:
        ballast, before = small_disk / "ballast", running.pid("controller")
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass
        os.kill(before, signal.SIGKILL)
        after = running.mended("controller", before).pid
        with pytest.raises(ControlRefused, match=r"secrets.json cannot be written: No space left .* Make room"):
            ask(running.layout, Renew(users=["controller"]))
        ballast.unlink()
        until(lambda: running.info.children["controller"].pid == after)
        assert "cluster.json cannot be written: No space left" in running.layout.log("supervisor").read_text()


def test_what_was_committed_survives_the_kill_of_both_servers(running_cluster: Cluster) -> None:
    asyncio.run(write_note(running_cluster.info, "before the kill"))
    for name in ("postgres", "nats"):
        for _ in range(2):
            pid = running_cluster.pid(name)
            os.kill(pid, signal.SIGKILL)
            running_cluster.mended(name, pid)
    assert asyncio.run(read_notes(running_cluster.info)) == (["before the kill"], 1)


def test_a_node_is_lost_whole_and_stays_off(running_cluster: Cluster) -> None:
    directory = running_cluster.layout.node("node-1")
    agent = running_cluster.pid("node-1")
    zygote = int((directory / "zygote.pid").read_text())
    lost = node_processes(directory, agent)
    assert {agent, zygote} < lost and len(lost) == 5

    reply = ask(running_cluster.layout, PowerOff(node="node-1"))

    assert reply.killed == 5
    assert not [pid for pid in lost if alive(pid)]
    until(lambda: running_cluster.child("node-1").state == "off")
    assert running_cluster.child("node-0").state == "ready"
    ask(running_cluster.layout, PowerOn(node="node-1"))
    assert running_cluster.child("node-1").state == "ready"
    assert len(node_processes(directory, None)) == 5


def test_ranks_whose_agent_was_killed_belong_to_the_node_still(running_cluster: Cluster) -> None:
    directory = running_cluster.layout.node("node-0")
    agent = running_cluster.pid("node-0")
    ranks = node_processes(directory, agent) - {agent}
    os.kill(agent, signal.SIGKILL)
    running_cluster.mended("node-0", agent)
    assert all(alive(pid) for pid in ranks)
    ask(running_cluster.layout, PowerOff(node="node-0"))
    assert not [pid for pid in ranks if alive(pid)]
    ask(running_cluster.layout, PowerOn(node="node-0"))


def test_requests_that_make_no_sense_are_refused(running_cluster: Cluster) -> None:
    with pytest.raises(ControlRefused, match="there is no node 'node-9'; the nodes are node-0, node-1"):
        ask(running_cluster.layout, PowerOff(node="node-9"))
    with pytest.raises(ControlRefused, match="is already on"):
        ask(running_cluster.layout, PowerOn(node="node-0"))


@pytest.mark.parametrize("sent", [b"\xff\x00garbage\n", b'{"op":"launch"}\n', b"x" * 200_000, b""])
def test_garbage_on_the_control_socket_harms_nothing(running_cluster: Cluster, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(running_cluster.layout.control_socket))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert ask(running_cluster.layout, Status()).ready


def test_a_second_supervisor_in_one_directory_is_refused(running_cluster: Cluster) -> None:
    second = Cluster(running_cluster.layout.root)
    assert second.wait() == 1
    assert f"already runs in {running_cluster.layout.root} (supervisor pid {running_cluster.process.pid})" in "".join(
        second.lines
    )


def test_a_port_that_is_taken_is_named(running_cluster: Cluster, tmp_path: Path) -> None:
    port = running_cluster.info.ports.postgres
    refused = Cluster(tmp_path, "--postgres-port", str(port))
    assert refused.wait() == 1
    assert f"port {port} on 127.0.0.1 is taken" in refused.lines[-1]


def test_a_service_that_cannot_start_ends_the_start_with_its_last_words(tmp_path: Path) -> None:
    failed = Cluster(tmp_path, "--broken")
    assert failed.wait() == 1
    output = "\n".join(failed.lines)
    assert "controller does not start: exit code 1" in output and "no such table: jobs" in output
    assert "postgres stopped" in output
    assert ClusterInfo.load(tmp_path).pid is None


def test_a_start_can_be_interrupted(tmp_path: Path) -> None:
    interrupted = Cluster(tmp_path, "--nodes", "1")
    interrupted.until_line("postgres ready")
    assert interrupted.end() == 0
    with cluster(tmp_path) as again:
        assert again.child("controller").state == "ready"


def test_after_the_death_of_the_supervisor_the_next_one_finds_a_clean_house(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as first:
        asyncio.run(write_note(first.info, "kept"))
        children = first.info.children
        # A process that does not listen to its death signal.
        os.kill(children["nats"].pid, signal.SIGSTOP)
        first.process.kill()
        first.process.wait()
    with cluster(tmp_path) as second:
        assert not [name for name, record in children.items() if started_ticks(record.pid) == record.started_ticks]
        assert asyncio.run(read_notes(second.info)) == (["kept"], 1)


def test_ctrl_c_while_waiting_for_a_detached_start_ends_it(tmp_path: Path) -> None:
    command = Cluster(tmp_path, "--nodes", "1", "--detach")
    command.until_line("supervisor pid")
    supervisor = int(command.lines[-1].rsplit(" ", 1)[1])
    command.end()
    assert not alive(supervisor)
    assert ClusterInfo.load(tmp_path).pid is None


def test_stop_with_force_does_not_wait(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nodes", "1") as running:
        agent = running.pid("node-0")
        os.kill(agent, signal.SIGSTOP)
        ranks = node_processes(running.layout.node("node-0"), agent)
        ledgers = SHARED_MEMORY / f"holdfast-{os.getpid()}-of-a-killed-agent"
        ledgers.mkdir()
        (running.layout.node("node-0") / "ledgers").symlink_to(ledgers)
        ask(running.layout, Stop(force=True))
        assert running.wait() == 0
        assert "asked to stop" not in running.layout.log("node-0").read_text()
        assert not [pid for pid in ranks if alive(pid)]
        assert not ledgers.exists()
        with pytest.raises(NoCluster, match="holdfast up"):
            ask(running.layout, Status())


def test_detached_it_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    command = Cluster(tmp_path, "--nodes", "1", "--detach")
    assert command.wait() == 0
    pid = int(command.lines[-1].removeprefix("pid "))
    assert alive(pid) and ask(command.layout, Status()).ready
    ask(command.layout, Stop())
    until(lambda: not alive(pid))


def test_detached_it_says_why_it_failed(tmp_path: Path) -> None:
    command = Cluster(tmp_path, "--broken", "--detach")
    assert command.wait() == 1
    assert "controller does not start" in "\n".join(command.lines)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with cluster(directory, "--nodes", "2") as running:
        yield running
