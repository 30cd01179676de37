"""Disks, mounts, pressure, the clock, container runtimes and checks of users: what each reading means."""

import socket
import sys
import threading
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.node.proc.mount_table import mount_of, mount_table
from holdfast.settings.inspections import CommandCheck, InspectionPolicy
from holdfast_agent.inspections.check import Check, Reading
from holdfast_agent.inspections.plugins import Command, answer_of, command_checks, entry_point_checks
from holdfast_agent.inspections.sources.clock import Clock, ClockState
from holdfast_agent.inspections.sources.container import Containers
from holdfast_agent.inspections.sources.disks import Disks, disks_below
from holdfast_agent.inspections.sources.mounts import Mounts
from holdfast_agent.inspections.sources.pressure import Pressure
from tests.scenes.inspected_machine import machine_at, write

POLICY = InspectionPolicy()


def told(reading: Reading) -> list[tuple[str, str]]:
    return [(trouble.device, trouble.kind) for trouble in reading.troubles]


def mountinfo(*lines: str) -> dict[str, object]:
    return {"proc/self/mountinfo": "\n".join(lines)}


ROOT = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"
NFS = "30 21 0:44 / /data rw,relatime shared:1 - nfs4 10.0.0.7:/export/data\\040set rw,hard"

# --- mounts ---


def nowhere() -> list[Path]:
    """A node that writes to no file system of these tests."""
    return []


def test_the_mount_table_is_read(tmp_path: Path) -> None:
    table = mount_table(machine_at(tmp_path, mountinfo(ROOT, NFS)))
    assert table is not None and table["/data"].is_remote and not table["/"].is_remote
    assert table["/data"].source == "10.0.0.7:/export/data set"
    assert mount_of(Path("/data/set/x"), table) is table["/data"]
    assert mount_of(Path("/database"), table) is table["/"]
    assert table["/data"].holds(Path("/data/set/x")) and not table["/data"].holds(Path("/database"))


def test_a_file_system_of_another_machine_is_known_by_its_kind(tmp_path: Path) -> None:
    kinds = ("ext4", "cifs", "fuse.hdfs", "fuse.lxcfs")
    lines = (f"3{at} 21 0:5{at} / /mnt/{kind} rw - {kind} source rw" for at, kind in enumerate(kinds))
    table = mount_table(machine_at(tmp_path, mountinfo(*lines)))
    assert table is not None and [mount.kind for mount in table.values() if mount.is_remote] == ["cifs", "fuse.hdfs"]


def test_a_network_file_system_that_is_unmounted_is_trouble(tmp_path: Path) -> None:
    for writes_to, confidence in (("/data/jobs/a", "tolerate"), ("/database", "hint")):
        machine = machine_at(tmp_path, mountinfo(ROOT, NFS))
        mounts = Mounts(machine, POLICY, lambda to=writes_to: [Path(to)], ask=lambda point: None)  # type: ignore[misc]
        assert told(mounts.read()) == []
        write(tmp_path, mountinfo(ROOT))
        reading = mounts.read()
        assert told(reading) == [("/data", "gone")] and reading.troubles[0].confidence == confidence
    write(tmp_path, mountinfo(ROOT, NFS))
    assert told(mounts.read()) == []


def test_a_mount_that_was_named_must_be_there_from_the_first(tmp_path: Path) -> None:
    policy = InspectionPolicy(mounts="/checkpoints/")
    mounts = Mounts(machine_at(tmp_path, mountinfo(ROOT)), policy, nowhere, ask=lambda point: None)
    reading = mounts.read()
    assert told(reading) == [("/checkpoints", "gone")] and reading.troubles[0].confidence == "evict"


def test_a_server_that_does_not_answer_holds_up_nothing_and_has_one_thread(tmp_path: Path) -> None:
    answer, asked = threading.Event(), []

    def ask(point: str) -> None:
        asked.append(point)
        if point == "/data":
            answer.wait()

    other = NFS.replace("/data ", "/other ")
    policy = InspectionPolicy(mount_hang_s=0.1)
    mounts = Mounts(machine_at(tmp_path, mountinfo(ROOT, NFS, other)), policy, nowhere, ask)
    assert told(mounts.read()) == [("/data", "hang")]
    assert told(mounts.read()) == [("/data", "hang")]
    assert asked.count("/data") == 1 and asked.count("/other") == 2
    answer.set()
    while mounts.read().troubles:
        pass


def test_a_stale_handle_is_trouble(tmp_path: Path) -> None:
    def ask(point: str) -> None:
        raise OSError(116, "Stale file handle")

    mounts = Mounts(machine_at(tmp_path, mountinfo(ROOT, NFS)), POLICY, nowhere, ask)
    assert told(mounts.read()) == [("/data", "error")]


# --- disks ---


def test_too_little_room_is_trouble_and_little_room_a_hint(tmp_path: Path) -> None:
    machine = machine_at(tmp_path, mountinfo(ROOT))
    full = Disks(machine, InspectionPolicy(disk_free_bytes_min=1 << 53), lambda: [tmp_path]).read()
    assert told(full) == [("/", "full")] and full.troubles[0].confidence == "tolerate"
    little = Disks(machine, InspectionPolicy(disk_free_percent_min=100), lambda: [tmp_path]).read()
    assert told(little) == [("/", "room")] and little.troubles[0].confidence is None
    assert told(Disks(machine, InspectionPolicy(disk_free_percent_min=0), lambda: [tmp_path]).read()) == []


def test_a_file_system_that_becomes_read_only_is_a_fault_and_one_that_always_was_is_not(tmp_path: Path) -> None:
    policy = InspectionPolicy(disk_free_percent_min=0)
    disks = Disks(machine_at(tmp_path, mountinfo(ROOT)), policy, lambda: [tmp_path])
    disks.read()
    write(tmp_path, mountinfo(ROOT.replace("/dev/sda1 rw", "/dev/sda1 ro")))
    reading = disks.read()
    assert told(reading) == [("/", "read-only")] and reading.troubles[0].confidence == "evict"
    assert told(Disks(machine_at(tmp_path), policy, lambda: [tmp_path]).read()) == []


def test_a_read_only_file_system_over_a_directory_that_could_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    paths = [tmp_path, tmp_path / "job"]
    disks = Disks(machine_at(tmp_path, mountinfo(ROOT)), InspectionPolicy(disk_free_percent_min=0), lambda: paths)
    assert told(disks.read()) == []
    over = ROOT.replace(" / / ", f" / {tmp_path}/job ").replace("/dev/sda1 rw", "tmpfs ro")
    write(tmp_path, mountinfo(ROOT, over))
    assert told(disks.read()) == [(f"{tmp_path}/job", "read-only")]


def test_a_directory_that_is_not_there_yet_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    disks = Disks(
        machine_at(tmp_path, mountinfo(ROOT)), InspectionPolicy(disk_free_percent_min=0), lambda: [tmp_path / "job"]
    )
    reading = disks.read()
    assert list(reading.seen) == ["/"] and not reading.unread


def test_the_disks_below_a_mount_are_found_through_lvm_and_partitions(tmp_path: Path) -> None:
    disk = "sys/devices/pci0/nvme/nvme0n1"
    write(tmp_path, {f"{disk}/nvme0n1p2/partition": 2, f"{disk}/device/state": "dead", "sys/devices/dm/dm-0/size": 1})
    for link, to in (
        ("sys/devices/dm/dm-0/slaves/nvme0n1p2", f"{disk}/nvme0n1p2"),
        ("sys/dev/block/253:0", "sys/devices/dm/dm-0"),
        ("sys/class/block/nvme0n1", disk),
    ):
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(tmp_path / to)
    machine = machine_at(tmp_path, mountinfo(ROOT.replace("8:1", "253:0")))
    assert disks_below(machine, "253:0") == {"dm-0", "nvme0n1p2", "nvme0n1"}
    reading = Disks(machine, InspectionPolicy(disk_free_percent_min=0), lambda: [tmp_path]).read()
    assert told(reading) == [("nvme0n1", "state")] and reading.troubles[0].confidence == "evict"


# --- pressure ---

PSI = "some avg10=0.00 avg60={} avg300=0.00 total=1\nfull avg10=0.00 avg60={} avg300=0.00 total=1"


def test_pressure_is_that_of_the_last_minute(tmp_path: Path) -> None:
    files = {"proc/pressure/cpu": PSI.format("91.50", "0.00"), "proc/pressure/memory": PSI.format("60.00", "3.00")}
    pressure = Pressure(machine_at(tmp_path, files | {"proc/meminfo": "MemAvailable:    9000000 kB"}), POLICY)
    assert told(pressure.read()) == [("cpu", "pressure")]
    write(tmp_path, {"proc/pressure/memory": PSI.format("60.00", "40.00"), "proc/meminfo": "MemAvailable: 1000 kB"})
    assert told(pressure.read()) == [("cpu", "pressure"), ("memory", "pressure"), ("memory", "free")]


def test_a_kernel_without_pressure_information_is_told_with_the_cure(tmp_path: Path) -> None:
    reading = Pressure(machine_at(tmp_path), POLICY).read()
    assert not reading.troubles and "psi=1" in reading.unread["cpu"]


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/pods/a", "sys/fs/cgroup/pods/a/memory.events"),
        ("4:memory:/pods/a\n0::/", "sys/fs/cgroup/memory/pods/a/memory.oom_control"),
        ("0::/", "sys/fs/cgroup/memory.events"),
    ],
)
def test_kills_at_the_limit_of_the_nodes_own_cgroup_are_counted(cgroup: str, file: str, tmp_path: Path) -> None:
    files = {"proc/self/cgroup": cgroup, file: "oom 3\noom_kill 3"}
    pressure = Pressure(machine_at(tmp_path, files), POLICY)
    assert told(pressure.read()) == []
    write(tmp_path, {file: "oom 5\noom_kill 5"})
    reading = pressure.read()
    assert told(reading) == [("memory", "oom kill")] and "killed 2 processes" in reading.troubles[0].detail


def test_kills_in_a_cgroup_that_is_everybodys_are_not_the_nodes(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/\n0::/", "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 3"}
    pressure = Pressure(machine_at(tmp_path, files), POLICY)
    pressure.read()
    write(tmp_path, {"sys/fs/cgroup/memory/memory.oom_control": "oom_kill 5"})
    assert told(pressure.read()) == []


# --- the clock ---


def clock(state: ClockState, *differences: float) -> Clock:
    return Clock(POLICY, lambda: state, iter(differences or (0.0,) * 9).__next__)


def test_a_clock_that_is_off_is_a_hint() -> None:
    well = ClockState(is_synchronised=True, offset_s=-0.0002, error_s=0.003)
    off = ClockState(is_synchronised=True, offset_s=-0.9, error_s=0.003)
    assert told(clock(well).read()) == [] and told(clock(off).read()) == [("", "skew")]


def test_of_a_clock_that_nobody_keeps_the_skew_is_not_known() -> None:
    reading = clock(ClockState(is_synchronised=False, offset_s=0.0, error_s=16.0)).read()
    assert not reading.troubles and "run chronyd" in reading.unread[""]


def test_a_clock_that_is_set_is_told() -> None:
    watched = clock(ClockState(is_synchronised=True, offset_s=0.0, error_s=0.0), 100.0, 100.01, 93.0)
    assert [told(watched.read()) for _ in range(3)] == [[], [], [("", "step")]]


# --- container runtimes ---


def runtime(path: Path, answer: bytes) -> socket.socket:
    """Somebody who answers once at this socket."""
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("name", "answer", "kinds"),
    [
        ("docker.sock", b"HTTP/1.1 200 OK\r\n\r\nOK", []),
        ("docker.sock", b"HTTP/1.1 500 Internal Server Error\r\n\r\n", ["answer"]),
        ("containerd/containerd.sock", b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00" * 6, []),
        ("crio/crio.sock", b"", ["answer"]),
    ],
)
def test_a_runtime_answers_in_its_own_way(name: str, answer: bytes, kinds: list[str], tmp_path: Path) -> None:
    with runtime(tmp_path / "run" / name, answer):
        reading = Containers(machine_at(tmp_path)).read()
    assert [trouble.kind for trouble in reading.troubles] == kinds


def test_a_runtime_that_is_gone_is_trouble_and_one_that_never_was_is_not(tmp_path: Path) -> None:
    containers = Containers(machine_at(tmp_path))
    assert containers.read().absent
    with runtime(tmp_path / "run/docker.sock", b"HTTP/1.1 200 OK\r\n\r\n"):
        assert told(containers.read()) == []
    assert [kind for _, kind in told(containers.read())] == ["answer"]


# --- checks of users ---


@pytest.mark.parametrize(
    ("output", "code", "confidences"),
    [
        ("FANS OK | rpm=9000", 0, []),
        ("FANS WARNING - fan 3 is slow", 1, ["hint"]),
        ("FANS CRITICAL - fan 3 stands | rpm=0", 2, [None]),
        ('{"troubles": [{"device": "fan3", "detail": "stands", "confidence": "tolerate"}]}', 0, ["tolerate"]),
        ('{"detail": "all turn"}', 2, []),
    ],
)
def test_an_executable_speaks_as_nagios_does_or_json(output: str, code: int, confidences: list[str | None]) -> None:
    reading = answer_of(output, code)
    assert [trouble.confidence for trouble in reading.troubles] == confidences and not reading.unread


@pytest.mark.parametrize(
    ("output", "code", "why"),
    [
        ("FANS UNKNOWN - no sensor", 3, "exit code 3.: FANS UNKNOWN - no sensor"),
        ("", 127, "exit code 127"),
        ("", -11, "signal 11"),
        ('{"trouble": []}', 0, "unknown field"),
        ('{"troubles": [', 0, "JSON is invalid"),
    ],
)
def test_an_executable_that_cannot_look_is_no_trouble(output: str, code: int, why: str) -> None:
    reading = answer_of(output, code)
    assert not reading.troubles
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(reading.unread[""])


def test_an_executable_is_run_and_ended_at_its_limit() -> None:
    well = CommandCheck(command=f"{sys.executable} -c \"print('all well')\"")
    assert Command(well).read() == Reading(seen={"": "all well"})
    slow = CommandCheck(command="sleep 1000", limit_s=0.1)
    assert "took longer than limit_s = 0.1" in Command(slow).read().unread[""]
    missing = CommandCheck(command="/no/such/check --now")
    assert "/no/such/check cannot be run: No such file" in Command(missing).read().unread[""]


def test_commands_become_checks() -> None:
    policy = InspectionPolicy(commands={"fans": CommandCheck(command="check_fans", confidence="evict", scope="host")})
    (check,) = command_checks(policy)
    assert (check.name, check.confidence, check.scope, check.interval_s) == ("fans", "evict", "host", 60.0)


def mine(policy: InspectionPolicy) -> Check:
    return Check(name="mine", source="here", read=Reading, interval_s=policy.gpu_s)


def no_check(policy: InspectionPolicy) -> object:
    return "nothing of use"


def test_entry_points_give_checks_and_a_broken_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_package", SimpleNamespace(mine=mine, no_check=no_check))
    points = [
        metadata.EntryPoint(name=name, value=f"some_package:{name}", group="holdfast.inspections")
        for name in ("mine", "no_check", "missing")
    ]
    checks = {check.name: check for check in entry_point_checks(POLICY, points)}
    assert checks["mine"].interval_s == POLICY.gpu_s and not checks["mine"].read().unread
    assert "it returns a str" in checks["no_check"].read().unread[""]
    assert "AttributeError" in checks["missing"].read().unread[""]
