"""The faults of `holdfast inject`, by the kernel's own means, on plain processes and directories."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults_scene import WITHIN_S, cluster_files, inject, kernel_log, state_of, undo, until

from holdfast.embedded import fabric
from holdfast.embedded.layout import ClusterLayout, Fabric
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.faults.cgroups import hierarchy
from holdfast.faults.fault import FaultRefused
from holdfast.faults.helpers import marked
from holdfast.faults.injections import InjectionLog
from holdfast.faults.registry import find_fault
from holdfast.faults.requirements import lacking
from holdfast.faults.target import TargetProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[ClusterLayout]:
    with cluster_files(tmp_path / "cluster") as made:
        yield made


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
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
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


def test_a_worker_dies_and_its_rank_does_not(
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
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


def test_cores_burn_until_that_is_undone(layout: ClusterLayout) -> None:
    injected = inject(layout, "overload", burners="1")
    mark = f"holdfast-{injected.id.replace('-', '')[-12:]}"
    until("each core has a burner", lambda: len(marked(mark)) == len(os.sched_getaffinity(0)))
    undo(layout)
    until("they are gone", lambda: not marked(mark))


def test_a_process_that_ended_meanwhile_is_not_mistaken_for_another(
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    one = started(WORKING)
    was = TargetProcess.of(one.pid)
    assert was is not None and not TargetProcess(pid=was.pid, ticks=was.ticks + 1).signal(signal.SIGKILL)
    assert one.poll() is None


def test_the_kernel_kills_for_lack_of_memory_and_says_so(
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    # It asks for nothing any more: a page too many is brought to it.
    one = started('import time\nprint("ready", flush=True)\ntime.sleep(1000)')
    injected = inject(layout, "oom-kill", struck=one.pid)
    assert one.wait(WITHIN_S) == -signal.SIGKILL
    undo(layout)
    assert not list(Path("/sys/fs/cgroup").glob(f"*/holdfast-{injected.id.replace('-', '')[-12:]}"))
    if not lacking(find_fault("xid").needs[0]):
        assert re.search(rf"Memory cgroup out of memory: Killed process {one.pid} ", kernel_log())


def test_a_node_gets_less_of_the_processor_and_has_it_back(layout: ClusterLayout) -> None:
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
    layout: ClusterLayout,
    started: Callable[[str], subprocess.Popen[str]],
    name: str,
    options: dict[str, str],
    said: str,
) -> None:
    one = started(TRAINING)
    inject(layout, name, struck=one.pid, look_s="0.2", **options)
    assert one.stdout is not None and one.stdout.readline().strip() in said.split(" or ")


def test_where_nothing_trains_no_number_is_touched(
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    with pytest.raises(FaultRefused, match="no weights of float32 that change"):
        inject(layout, "nan", struck=started(WORKING).pid, look_s="0.01")


# --- the kernel's log, links, services -------------------------------------------------------------


def test_a_line_of_a_driver_is_in_the_kernels_log_and_known_as_a_drill(layout: ClusterLayout) -> None:
    injected = inject(layout, "xid", xid="48", pci="0000:4f:00")
    mark = f"holdfast-{injected.id.replace('-', '')[-12:]}"
    lines = kernel_log().splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.endswith(f"drill {mark}"))
    following = [line for line in lines[place + 1 : place + 6] if "Xid (PCI:0000:4f:00): 48, " in line]
    # Facility 1, "user", and level 4: 1 * 8 + 4.
    assert following and following[0].startswith("12,")
    assert InjectionLog(layout).all() == []


@pytest.fixture
def network(layout: ClusterLayout) -> Iterator[Fabric]:
    if reason := lacking(find_fault("link-down").needs[0]) or lacking(find_fault("disk-full").needs[0]):
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


def test_links_are_pulled_and_cut_one_by_one(layout: ClusterLayout, network: Fabric) -> None:
    def reaches(node: str, address: str) -> bool:
        command = (*fabric.inside(network, node), sys.executable, "-c", REACH, address)
        return subprocess.run(command, capture_output=True, text=True).stdout == "reached\n"

    other = network.address("node-1")
    until("the nodes are on the network", lambda: reaches("node-0", other) and reaches("node-0", network.gateway))
    inject(layout, "cut", network=network, off="node-1")
    assert not reaches("node-0", other) and reaches("node-0", network.gateway)
    undo(layout)
    until("they reach each other again", lambda: reaches("node-0", other))

    def carrier() -> str:
        show = (*fabric.inside(network, "node-0"), "cat", "/sys/class/net/eth0/operstate")
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


def test_a_node_with_a_network_of_its_own_sees_the_control_groups_that_limit_it(network: Fabric) -> None:
    if reason := lacking(find_fault("slow-node").needs[0]):
        pytest.skip(reason)
    (root, _) = hierarchy("cpu")
    shown = subprocess.run((*fabric.inside(network, "node-0"), "cat", str(root / "cpu.stat")), capture_output=True)
    assert shown.stdout and not shown.returncode, shown.stderr


def test_a_service_answers_errors_until_that_is_undone(layout: ClusterLayout) -> None:
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
    # The kernel closes the socket of the killed process a moment later.
    until("nothing listens there any more", lambda: _refuses(port))


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_who_injects_may_die_and_what_was_done_is_undone_all_the_same(
    layout: ClusterLayout, started: Callable[[str], subprocess.Popen[str]]
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
