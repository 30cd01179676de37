"""The faults of `holdfast inject`, by the kernel's own means, on plain processes and directories."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.embedded import fabric
from holdfast.embedded.layout import ClusterInfo, Fabric, Layout, Ports
from holdfast.embedded.ports import reserve_ports
from holdfast.embedded.process import stat_fields
from holdfast.faults.aim import Aim, Proc, Rank
from holdfast.faults.fault import FaultRefused
from holdfast.faults.helpers import marked
from holdfast.faults.record import Injected, Record
from holdfast.faults.registry import find
from holdfast.faults.rights import lacking
from holdfast.ids import uuid7

pytestmark = pytest.mark.integration

WITHIN_S = 20.0


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout(tmp_path / "cluster")
    layout.create()
    layout.node("node-0").mkdir()
    yield layout
    for left in Record(layout).all():
        Record(layout).undo(left)


@pytest.fixture
def started() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Python programs; each has said "ready" when it is handed out."""
    running: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        one = subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True)
        running.append(one)
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
        return one

    yield start
    for one in running:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def inject(
    layout: Layout,
    name: str,
    *,
    struck: int | None = None,
    node: str = "node-0",
    network: Fabric | None = None,
    **options: str,
) -> Injected:
    """Inject, aimed at a process as at a rank. Skips where the machine lacks what is needed."""
    fault = find(name)
    if reasons := [reason for need in fault.needs if (reason := lacking(need))]:
        pytest.skip("; ".join(reasons))
    process = Proc.of(struck) if struck is not None else None
    info = ClusterInfo(
        version="1",
        pid=None,
        ports=Ports(postgres=1, nats=2, nats_monitor=3),
        nats_url="",
        nats_monitor_url="",
        database_urls={},
        nodes=["node-0", "node-1"],
        fabric=network,
    )
    target = Aim(uuid7(), layout, info, node, Rank("job", 0, node, process) if process else None)
    injected = Injected(
        id=target.id,
        fault=name,
        at=datetime.now(UTC),
        by="a test",
        steps=fault.plan(target, fault.configured(options)),  # type: ignore[arg-type]
    )
    Record(layout).inject(injected)
    return injected


def undo(layout: Layout) -> None:
    """As `holdfast inject --undo` does, from what is on record."""
    (injected,) = Record(layout).all()
    Record(layout).undo(injected)
    Record(layout).undo(injected)


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[0] if fields else ""


WORKING = """
import time
print("ready", flush=True)
while True:
    time.sleep(0.01)
    bytearray(1 << 20)
"""
TRAINING = """
import time
import numpy as np
rng = np.random.default_rng(1)
weights = rng.normal(size=1 << 18).astype(np.float32)
gradients = np.empty_like(weights)
print("ready", flush=True)
while np.isfinite(weights).all():
    gradients[:] = rng.normal(size=len(weights)).astype(np.float32)
    if abs(gradients).max() > 100:
        print("flipped", flush=True)
        break
    weights -= 1e-4 * gradients
else:
    print("nan", flush=True)
time.sleep(1000)
"""


# --- processes, memory, numbers --------------------------------------------------------------------


def test_a_process_is_killed_crashes_or_stands_still(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    for name, number in (("kill-rank", signal.SIGKILL), ("crash-rank", signal.SIGSEGV)):
        one = started(WORKING)
        inject(layout, name, struck=one.pid)
        assert one.wait(WITHIN_S) == -number
    one = started(WORKING)
    inject(layout, "freeze-rank", struck=one.pid)
    until("it stands still", lambda: state_of(one.pid) == "T")
    undo(layout)
    until("it goes on", lambda: state_of(one.pid) != "T")


def test_a_worker_dies_and_its_rank_does_not(layout: Layout, started: Callable[[str], subprocess.Popen[str]]) -> None:
    with pytest.raises(FaultRefused, match="has no child: its script uses no workers"):
        inject(layout, "kill-worker", struck=started(WORKING).pid)
    one = started(
        "import subprocess, time\n"
        "worker = subprocess.Popen(('sleep', '1000'))\n"
        "print('ready', flush=True)\n"
        "print(worker.wait(), flush=True)\n"
        "time.sleep(1000)"
    )
    inject(layout, "kill-worker", struck=one.pid)
    assert one.stdout is not None and one.stdout.readline() == "-9\n"
    assert one.poll() is None


def test_cores_burn_until_that_is_undone(layout: Layout) -> None:
    injected = inject(layout, "overload", burners="1")
    mark = f"holdfast-{injected.id.replace('-', '')[-12:]}"
    until("each core has a burner", lambda: len(marked(mark)) == len(os.sched_getaffinity(0)))
    undo(layout)
    until("they are gone", lambda: not marked(mark))


def test_a_process_that_ended_meanwhile_is_not_mistaken_for_another(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    one = started(WORKING)
    was = Proc.of(one.pid)
    assert was is not None and not Proc(pid=was.pid, ticks=was.ticks + 1).signal(signal.SIGKILL)
    assert one.poll() is None


def test_the_kernel_kills_for_lack_of_memory_and_says_so(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    # It asks for nothing any more: a page too many is brought to it.
    one = started('import time\nprint("ready", flush=True)\ntime.sleep(1000)')
    injected = inject(layout, "oom-kill", struck=one.pid)
    assert one.wait(WITHIN_S) == -signal.SIGKILL
    undo(layout)
    assert not list(Path("/sys/fs/cgroup").glob(f"*/holdfast-{injected.id.replace('-', '')[-12:]}"))
    if not lacking(find("xid").needs[0]):
        assert re.search(rf"Memory cgroup out of memory: Killed process {one.pid} ", kernel_log())


def test_a_node_gets_less_of_the_processor_and_has_it_back(layout: Layout) -> None:
    directory = str(layout.node("node-0").resolve())
    program = "import os\nos.write(1, b'ready\\n')\nwhile True: pass"
    with subprocess.Popen(
        (sys.executable, "-c", program), env={"HOLDFAST_NODE_DIR": directory}, stdout=subprocess.PIPE
    ) as one:
        try:
            assert one.stdout is not None and one.stdout.readline() == b"ready\n"
            before = Path(f"/proc/{one.pid}/cgroup").read_text()
            injected = inject(layout, "slow-node", cores="0.01")
            (step,) = injected.steps
            group = Path(step.root) / step.name  # type: ignore[union-attr]
            until("it is held back", lambda: "nr_throttled 0" not in (group / "cpu.stat").read_text())
            undo(layout)
            assert Path(f"/proc/{one.pid}/cgroup").read_text() == before and not group.exists()
        finally:
            one.kill()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    # A gradient that flips after it was looked at ends in the weights.
    [("nan", {}, "nan"), ("bit-flip", {"where": "gradients", "bit": "30", "every_s": "0.01"}, "flipped or nan")],
)
def test_numbers_go_wrong_in_the_memory_of_a_process_that_knows_nothing_of_it(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]], name: str, options: dict[str, str], said: str
) -> None:
    one = started(TRAINING)
    inject(layout, name, struck=one.pid, look_s="0.2", **options)
    assert one.stdout is not None and one.stdout.readline().strip() in said.split(" or ")


def test_where_nothing_trains_no_number_is_touched(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    with pytest.raises(FaultRefused, match="no weights of float32 that change"):
        inject(layout, "nan", struck=started(WORKING).pid, look_s="0.01")


# --- disks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [("disk-full", "No space left"), ("inodes-full", "No space left"), ("read-only", "Read-only file system")],
)
def test_nothing_more_can_be_written_and_what_was_there_is_there(layout: Layout, name: str, message: str) -> None:
    directory = layout.node("node-0")
    (directory / "old").write_text("old")
    (directory / "folder" / "inner").mkdir(parents=True)
    inject(layout, name)
    with pytest.raises(OSError, match=message):
        (directory / "new").write_bytes(bytes(100_000))
    if name == "disk-full":
        # It takes no room.
        (directory / "folder").rename(directory / "moved")
    assert (directory / "old").read_text() == "old"
    at = os.statvfs(directory)
    assert name == "read-only" or at.f_bavail == 0 or at.f_ffree == 0
    undo(layout)
    (directory / "new").write_bytes(bytes(100_000))
    assert sorted(path.name for path in directory.iterdir()) == ["folder", "new", "old"]


def test_a_file_system_is_not_there(layout: Layout) -> None:
    directory = layout.node("node-0")
    (directory / "old").touch()
    inject(layout, "unmounted")
    assert not list(directory.iterdir())
    undo(layout)
    assert list(directory.iterdir())


def write_through(path: Path) -> None:
    with path.open("w") as file:
        file.write("x")
        file.flush()
        os.fsync(file.fileno())


def test_a_disk_fails_below_a_directory(layout: Layout) -> None:
    directory = layout.node("node-0")
    (directory / "folder").mkdir()
    (directory / "folder" / "old").write_text("what was there")
    inject(layout, "disk-fails")
    with pytest.raises(OSError, match="Input/output error"):
        (directory / "folder" / "old").read_text()
    with pytest.raises(OSError, match=r"Input/output error|Read-only file system"):
        write_through(directory / "new")
    undo(layout)
    assert (directory / "folder" / "old").read_text() == "what was there"
    assert not (directory / "new").exists()


def test_a_disk_is_not_copied_that_holds_the_cluster(layout: Layout) -> None:
    with pytest.raises(FaultRefused, match="holds the cluster's own directory"):
        inject(layout, "disk-fails", path=str(layout.root))


def test_a_file_system_does_not_answer(layout: Layout) -> None:
    directory = layout.node("node-0")
    (directory / "old").touch()
    inject(layout, "mount-hangs")
    with subprocess.Popen(("ls", str(directory)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as looking:
        until("it waits inside the kernel", lambda: state_of(looking.pid) in ("S", "D"))
        with pytest.raises(subprocess.TimeoutExpired):
            looking.wait(0.2)
        undo(layout)
        assert looking.wait(WITHIN_S) != 0
    assert [path.name for path in directory.iterdir()] == ["old"]


# --- the kernel's log, links, services -------------------------------------------------------------


def kernel_log() -> str:
    """The records that the kernel keeps, "priority,number,time,flags;text" each."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    records.append(os.read(descriptor, 8192).decode(errors="replace"))
                except BrokenPipeError:
                    # Overwritten while it was read; the next one is there.
                    continue
    finally:
        os.close(descriptor)
    return "".join(records)


def test_a_line_of_a_driver_is_in_the_kernels_log_and_known_as_a_drill(layout: Layout) -> None:
    injected = inject(layout, "xid", xid="48", pci="0000:4f:00")
    mark = f"holdfast-{injected.id.replace('-', '')[-12:]}"
    lines = kernel_log().splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.endswith(f"drill {mark}"))
    following = [line for line in lines[place + 1 : place + 6] if "Xid (PCI:0000:4f:00): 48, " in line]
    # Facility 1, "user", and level 4: 1 * 8 + 4.
    assert following and following[0].startswith("12,")
    assert Record(layout).all() == []


@pytest.fixture
def network(layout: Layout) -> Iterator[Fabric]:
    if reason := lacking(find("link-down").needs[0]) or lacking(find("disk-full").needs[0]):
        pytest.skip(reason)
    made = fabric.choose(layout, None)
    try:
        fabric.build(made)
        for node in ("node-0", "node-1"):
            fabric.add_node(made, node)
        yield made
    finally:
        fabric.remove(made)
    assert made.bridge not in subprocess.run(("ip", "link"), capture_output=True, text=True, check=True).stdout


REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=0.3)
except ConnectionRefusedError:
    print("reached")
except OSError as error:
    print(error)
"""


def test_links_are_pulled_and_cut_one_by_one(layout: Layout, network: Fabric) -> None:
    def reaches(node: str, address: str) -> bool:
        inside = ("ip", "netns", "exec", network.namespace(node))
        said = subprocess.run((*inside, sys.executable, "-c", REACH, address), capture_output=True, text=True)
        return said.stdout == "reached\n"

    other = network.address("node-1")
    until("the nodes are on the network", lambda: reaches("node-0", other) and reaches("node-0", network.gateway))
    inject(layout, "cut", network=network, off="node-1")
    assert not reaches("node-0", other) and reaches("node-0", network.gateway)
    undo(layout)
    until("they reach each other again", lambda: reaches("node-0", other))

    def carrier() -> str:
        show = ("ip", "netns", "exec", network.namespace("node-0"), "cat", "/sys/class/net/eth0/operstate")
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()

    inject(layout, "link-down", network=network)
    until("the carrier is lost", lambda: carrier() == "down")
    undo(layout)
    until("the carrier is back", lambda: carrier() == "up")
    inject(layout, "slow-link", network=network, rate="1mbit")
    show = ("tc", "qdisc", "show", "dev", network.link("node-0"))
    assert "tbf" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    undo(layout)
    assert "tbf" not in subprocess.run(show, capture_output=True, text=True, check=True).stdout


def test_a_service_answers_errors_until_that_is_undone(layout: Layout) -> None:
    with reserve_ports({}, None) as ports:
        port = ports.nats
    inject(layout, "service-down", port=str(port), speaks="webhdfs")
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/webhdfs/v1/data?op=OPEN", timeout=WITHIN_S)
    with told.value:
        assert told.value.code == 503 and b"StandbyException" in told.value.read()
    with pytest.raises(FaultRefused, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
        inject(layout, "service-down", port=str(port))
    undo(layout)
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=WITHIN_S)


def test_who_injects_may_die_and_what_was_done_is_undone_all_the_same(
    layout: Layout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    one = started(WORKING)
    child = os.fork()
    if child == 0:
        try:
            inject(layout, "freeze-rank", struck=one.pid)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    until("it stands still", lambda: state_of(one.pid) == "T")
    undo(layout)
    until("it goes on", lambda: state_of(one.pid) != "T")
