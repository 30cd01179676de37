"""Checks on the real thing: the kernel's log, links, a switch, a full disk, a file system that hangs, an OOM kill."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.clock import system_now
from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Reading, Trouble
from holdfast_agent.inspections.judge import InspectionReport
from holdfast_agent.inspections.node_hardware import Gpus, HardwareFinder
from holdfast_agent.inspections.runner import Inspections
from holdfast_agent.inspections.sources.disks import Disks
from holdfast_agent.inspections.sources.kernel_log import KernelLog, kernel_check
from holdfast_agent.inspections.sources.mounts import Mounts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

KMSG = Path("/dev/kmsg")
MACHINE = Machine()
POLICY = InspectionPolicy()
WAIT_S = 60.0


def refused(attempt: Callable[[], object]) -> str:
    """Why something cannot be done here; "" if it can."""
    try:
        attempt()
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


# --- the kernel's log ---

NO_KMSG = refused(lambda: (KMSG.open("wb").close(), os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))))
NET_RAW, DAC_READ_SEARCH = 13, 2
"""Of capabilities(7)."""
needs_kmsg = pytest.mark.skipif(bool(NO_KMSG), reason=f"the kernel's log cannot be read and written: {NO_KMSG}")

MINE, OTHERS = "0000:f3:00", "0000:f4:00"
"""Hardly any machine has a GPU there: to agents of other tests it is no more than a hint."""


def xid(pci: str, number: int) -> None:
    KMSG.write_text(f"<3>NVRM: Xid (PCI:{pci}): {number}, pid=1, written by a test of Holdfast\n")


def log_of(pids: tuple[int, ...] = (), **fields: object) -> KernelLog:
    gpus = Gpus(of_machine=frozenset(), own=frozenset({MINE}), are_divided=True)
    finder = HardwareFinder(MACHINE, POLICY, gpus, lambda: (), lambda: pids)
    return KernelLog(MACHINE, finder, **fields)  # type: ignore[arg-type]


def found(log: KernelLog, such: Callable[[Trouble], bool]) -> list[Trouble]:
    return [trouble for trouble in log.read().troubles if such(trouble)]


def by_a_test(trouble: Trouble) -> bool:
    return "written by a test of Holdfast" in trouble.lines[0] and trouble.device in (MINE, OTHERS)


@needs_kmsg
def test_a_line_of_this_node_is_told_and_that_of_another_is_not() -> None:
    xid(MINE, 48)
    log = log_of()
    # What was there before is none of its business.
    assert found(log, by_a_test) == []
    xid(OTHERS, 79)
    xid(MINE, 79)
    xid(MINE, 31)
    told = found(log, by_a_test)
    assert [(one.device, one.kind, one.confidence, one.scope) for one in told] == [
        (MINE, "xid 79", "evict", "node"),
        (MINE, "xid 31", "hint", "node"),
    ]
    assert found(log, by_a_test) == []
    log.close()


@needs_kmsg
def test_an_agent_that_comes_back_reads_what_it_missed_and_nothing_twice() -> None:
    before = log_of()
    before.read()
    xid(MINE, 79)
    assert len(found(before, by_a_test)) == 1
    before.close()
    xid(MINE, 119)
    after = log_of(recalled=before.position)
    assert [one.kind for one in found(after, by_a_test)] == ["xid 119"]
    after.close()


@needs_kmsg
async def test_a_line_is_told_long_before_the_interval_is_over() -> None:
    log, said, heard = log_of(), [], asyncio.Event()

    def say(check: str, now: Sequence[InspectionReport]) -> None:
        said.extend(one for one in now if one.device == MINE)
        if said:
            heard.set()

    policy = InspectionPolicy(kernel_s=3600.0)
    looked = asyncio.Event()
    inspections = Inspections([kernel_check(policy, log)], say, system_now, 300.0, looked.set)
    task = asyncio.create_task(inspections.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await looked.wait()
            xid(MINE, 79)
            await heard.wait()
    finally:
        task.cancel()
        await asyncio.wait([task])
        log.close()
    assert (said[0].state, said[0].confidence, said[0].kind) == ("alert", "evict", "xid 79")


# --- a memory cgroup ---

EATS = "import sys; print('ready', flush=True); sys.stdin.readline(); x = bytearray(1 << 28)"
CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup of either version with this limit."""
    is_v1 = (CGROUPS / "memory/memory.limit_in_bytes").exists()
    folder = (CGROUPS / "memory" if is_v1 else CGROUPS) / f"holdfast-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


@needs_kmsg
def test_a_process_that_the_kernel_kills_for_memory_is_the_nodes_whose_it_was() -> None:
    with memory_cgroup(32 << 20) as folder:
        process = subprocess.Popen([sys.executable, "-c", EATS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        its_own, anothers = log_of(pids=(process.pid,)), log_of()
        its_own.read()
        anothers.read()
        (folder / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait() == -9
        process.stdout.close()

    def such(trouble: Trouble) -> bool:
        return trouble.device.endswith(f"[{process.pid}]")

    told = found(its_own, such)
    assert {(one.kind, one.confidence, one.scope, one.symptom) for one in told} == {
        ("oom kill", "hint", "node", "cpu_oom")
    }
    assert found(anothers, such) == []
    its_own.close()
    anothers.close()


# --- links and switches ---

WATCH = """
import json, socket, sys
from holdfast.settings.inspections import InspectionPolicy
from holdfast.node.machine import Machine
from holdfast_agent.inspections.sources.network import Network
from holdfast_agent.inspections.sources.reachability import Reachability
policy = InspectionPolicy(interfaces="eth0", switches="10.77.0.1")
checks = {
    "network": Network(Machine(), policy),
    "switch": Reachability(Machine(), policy),
    "gateway": Reachability(Machine(), InspectionPolicy()),
}
for line in sys.stdin:
    if line.startswith("send"):
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("10.77.0.1", 9))
        line = "gateway"
    reading = checks[line.strip()].read()
    told = [[one.kind, one.times] for one in reading.troubles]
    print(json.dumps({"told": told, "unread": reading.unread, "seen": reading.seen}), flush=True)
"""
NUMBERS = itertools.count()


class Watcher:
    """Checks in a network namespace with one link, whose other end is the switch."""

    def __init__(self, namespace: str, switch: str, process: subprocess.Popen[str]) -> None:
        self.namespace = namespace
        self.switch = switch
        self._process = process

    def read(self, check: str) -> dict[str, object]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(check + "\n")
        self._process.stdin.flush()
        answer: dict[str, object] = json.loads(self._process.stdout.readline())
        return answer

    def at_switch(self, *words: str) -> None:
        ip("-n", self.switch, *words)

    def at_node(self, *words: str) -> None:
        ip("-n", self.namespace, *words)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    number = f"{os.getpid() % 100000}-{next(NUMBERS)}"
    node, switch = f"hf-node-{number}", f"hf-switch-{number}"
    try:
        ip("netns", "add", node)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    process: subprocess.Popen[str] | None = None
    try:
        ip("netns", "add", switch)
        # Interfaces with IPv6 send some packets of their own, at times of their own.
        for name in ("all", "default"):
            ip("netns", "exec", node, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        ip("-n", node, "link", "add", "eth0", "type", "veth", "peer", "name", "port0", "netns", switch)
        ip("-n", node, "address", "add", "10.77.0.2/24", "dev", "eth0")
        ip("-n", switch, "address", "add", "10.77.0.1/24", "dev", "port0")
        ip("-n", switch, "link", "set", "port0", "up")
        ip("-n", node, "link", "set", "eth0", "up")
        # `ip netns exec` mounts /sys anew, and so shows this namespace's interfaces.
        process = subprocess.Popen(
            ["ip", "netns", "exec", node, sys.executable, "-c", WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        yield Watcher(node, switch, process)
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        for namespace in (node, switch):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def test_a_link_that_goes_down_or_flaps_is_seen(watcher: Watcher) -> None:
    assert watcher.read("network")["told"] == []
    watcher.at_switch("link", "set", "port0", "down")
    assert watcher.read("network")["told"] == [["link", 1]]
    watcher.at_switch("link", "set", "port0", "up")
    assert watcher.read("network")["told"] == []
    for _ in range(2):
        watcher.at_switch("link", "set", "port0", "down")
        watcher.at_switch("link", "set", "port0", "up")
    assert watcher.read("network")["told"] == [["flap", 2]]
    watcher.at_node("link", "set", "eth0", "down")
    assert watcher.read("network")["told"] == [["link", 1]]
    watcher.at_node("link", "delete", "eth0")
    assert watcher.read("network")["told"] == [["gone", 1]]


def test_a_switch_that_stops_to_answer_is_seen(watcher: Watcher) -> None:
    first = watcher.read("switch")
    assert (first["told"], first["unread"]) == ([], {})
    watcher.at_switch("address", "delete", "10.77.0.1/24", "dev", "port0")
    assert watcher.read("switch")["told"] == [["reach", 1]]
    watcher.at_switch("address", "add", "10.77.0.1/24", "dev", "port0")
    assert watcher.read("switch")["told"] == []


def test_a_user_with_the_capability_may_send_an_echo() -> None:
    if os.geteuid() != 0 or not {NET_RAW, DAC_READ_SEARCH} <= capabilities_of_this_process():
        pytest.skip("this process cannot give CAP_NET_RAW and CAP_DAC_READ_SEARCH away")
    # The second capability lets the user read this environment.
    capabilities = "+net_raw,+dac_read_search"
    ask = "from holdfast_agent.inspections.sources.reachability import icmp_echo; print(icmp_echo(['127.0.0.1'], 1.0))"
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    allowed = (f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}")
    answered = subprocess.run([*user, *allowed, sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert answered.stdout.strip() == "{'127.0.0.1'}", answered.stderr


def capabilities_of_this_process() -> set[int]:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    mask = int(line.split()[1], 16)
    return {number for number in range(64) if mask >> number & 1}


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def sent_packets(watcher: Watcher) -> int:
    statistics = ip("-n", watcher.namespace, "-s", "-j", "link", "show", "eth0")
    return int(json.loads(statistics)[0]["stats64"]["tx"]["packets"])


def test_a_gateway_is_looked_up_in_the_neighbour_table_and_nothing_is_sent(watcher: Watcher) -> None:
    def told_after(words: str) -> bool:
        return watcher.read(words)["told"] == [["reach", 1]]

    watcher.at_node("route", "add", "default", "via", "10.77.0.1")
    before = sent_packets(watcher)
    for _ in range(3):
        assert "nothing is known" in str(watcher.read("gateway")["seen"])
    assert sent_packets(watcher) == before
    watcher.read("send")
    wait_until(lambda: "hardware address is known" in str(watcher.read("gateway")["seen"]))
    watcher.at_switch("address", "delete", "10.77.0.1/24", "dev", "port0")
    watcher.at_node("neigh", "flush", "dev", "eth0")
    wait_until(lambda: told_after("send"))
    assert told_after("gateway")
    watcher.at_switch("address", "add", "10.77.0.1/24", "dev", "port0")
    wait_until(lambda: watcher.read("send")["told"] == [])


# --- disks and mounts ---

libc = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


@contextlib.contextmanager
def mounted(source: str, folder: Path, kind: str, options: str) -> Iterator[None]:
    folder.mkdir()
    if libc.mount(source.encode(), str(folder).encode(), kind.encode(), 0, options.encode()) != 0:
        pytest.skip(f"no {kind} can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(str(folder).encode(), MNT_DETACH)


def kinds(reading: Reading) -> list[tuple[str, str]]:
    return [(trouble.device, trouble.kind) for trouble in reading.troubles]


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_seen_by_its_bytes_and_by_its_inodes(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with mounted("none", folder, "tmpfs", "size=1m,nr_inodes=64"):
        disks = Disks(MACHINE, InspectionPolicy(disk_free_bytes_min=64 * 1024), lambda: [folder])
        assert kinds(disks.read()) == []
        fill(folder / "large")
        assert kinds(disks.read()) == [(str(folder), "full")]
        (folder / "large").unlink()
        assert kinds(disks.read()) == []
        with contextlib.suppress(OSError):
            for number in range(100):
                (folder / str(number)).touch()
        assert kinds(disks.read()) == [(str(folder), "full")]


def test_a_file_system_whose_server_is_silent_is_seen_and_holds_up_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "remote"
    try:
        # A FUSE server that never says a word.
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
        with mounted("server:/export", folder, "fuse.silent", options):
            mounts = Mounts(MACHINE, InspectionPolicy(mount_hang_s=0.3), lambda: ())
            assert (str(folder), "hang") in kinds(mounts.read())
            assert (str(folder), "hang") in kinds(mounts.read())
    finally:
        # The questions that are out fail now, and their threads end.
        os.close(server)
    assert (str(folder), "gone") in kinds(mounts.read())
