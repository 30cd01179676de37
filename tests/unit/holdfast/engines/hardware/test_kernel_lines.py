"""What lines of the kernel's log say: real ones of the field, and others as kernels and drivers print them."""

import os
from pathlib import Path

import pytest

from holdfast.engines.hardware.kernel_lines import read_line, without_stamp
from holdfast.engines.hardware.xid import catalogue, explained
from holdfast.pci import pci_address
from holdfast.symptoms import TABLE_ONE, Symptom

FIELD = os.environ.get("HOLDFAST_FIELD_DATA", "")
needs_field_data = pytest.mark.skipif(
    not FIELD, reason="HOLDFAST_FIELD_DATA names no folder with kernel logs of the field"
)


def kinds(file: str) -> list[tuple[str, str]]:
    lines = (Path(FIELD) / "kernel_logs" / file).read_text().splitlines()
    found = (read_line(without_stamp(line)) for line in lines)
    return [(trouble.kind, trouble.confidence) for trouble in found if trouble is not None]


@needs_field_data
def test_a_dead_system_processor_of_a_gpu_evicts() -> None:
    assert kinds("dmesg-with-xid-119.log") == [("xid 119", "evict")] * 5


@needs_field_data
def test_a_script_that_reads_out_of_bounds_and_an_oom_kill_are_hints() -> None:
    found = kinds("dmesg_oom.log")
    assert [kind for kind, _ in found].count("xid 13") == 16
    assert [kind for kind, _ in found].count("oom kill") == 4
    assert {confidence for _, confidence in found} == {"hint"}


@needs_field_data
def test_a_machine_without_free_files_is_told() -> None:
    assert kinds("dmesg_os.log") == [("files", "hint")] * 2


@pytest.mark.parametrize(
    ("line", "kind", "confidence", "symptom", "device"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
            "xid 79",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:3b:00",
        ),
        (
            "NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: (PCI ID: 10de:20b0) installed in this system has\\x0aNVRM: "
            "fallen off the bus and is not responding to commands.",
            "fallen off the bus",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:3b:00",
        ),
        (
            "NVRM: fallen off the bus and is not responding to commands.",
            "fallen off the bus",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "",
        ),
        (
            "amdgpu 0000:4e:00.0: amdgpu: socket: 1, die: 0 2 uncorrectable hardware errors detected in umc block",
            "uncorrectable error",
            "evict",
            Symptom.GPU_MEMORY_ERROR,
            "0000:4e:00",
        ),
        (
            "amdgpu 0000:0a:00.0: amdgpu: GPU reset begin!",
            "gpu reset",
            "tolerate",
            Symptom.GPU_UNAVAILABLE,
            "0000:0a:00",
        ),
        ("NVRM: Xid (PCI:0000:C1:00): 94, pid=7, Contained", "xid 94", "hint", Symptom.GPU_MEMORY_ERROR, "0000:c1:00"),
        (
            "NVRM: Xid (PCI:0000:19:00): 149, NETIR_LINK_EVT  Nonfatal   XC0 i0 Link 08 (0x0 0x0 0x0 0x0 0x0 0x0 0x0)",
            "xid 149",
            "hint",
            Symptom.GPU_UNAVAILABLE,
            "0000:19:00",
        ),
        (
            "NVRM: Xid (PCI:0000:19:00): 145, RLW_REMAP Fatal XC1 i0 Link 09 (0x4 0x0 0x0 0x0 0x0 0x0 0x0)",
            "xid 145",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:19:00",
        ),
        (
            "NVRM: Xid (PCI:0000:19:00): 154, recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
            "xid 154",
            "hint",
            Symptom.GPU_UNAVAILABLE,
            "0000:19:00",
        ),
        (
            "NVRM: Xid (PCI:0000:19:00): 154, recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            "xid 154",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:19:00",
        ),
        ("NVRM: Xid (PCI:0000:19:00): 4711, something new", "xid 4711", "hint", "", "0000:19:00"),
        (
            "NVRM: GPU at PCI:0000:9b:00 has fallen off the bus",
            "fallen off the bus",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:9b:00",
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "switch",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:05:00.0",
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 11012, Non-fatal, Link 8 egress",
            "switch",
            "hint",
            Symptom.GPU_UNAVAILABLE,
            "0000:06:00.0",
        ),
        ("Kernel panic - not syncing: Fatal exception", "panic", "evict", Symptom.OS_KERNEL_PANIC, ""),
        ("Oops: 0000 [#1] PREEMPT SMP NOPTI", "oops", "evict", Symptom.OS_KERNEL_PANIC, ""),
        (
            "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
            "oops",
            "evict",
            Symptom.OS_KERNEL_PANIC,
            "",
        ),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
            "soft lockup",
            "tolerate",
            Symptom.OS_KERNEL_PANIC,
            "CPU#3",
        ),
        (
            "INFO: task python3:8812 blocked for more than 122 seconds.",
            "hung task",
            "hint",
            Symptom.JOB_HANG,
            "python3[8812]",
        ),
        ("EDAC MC0: 1 UE memory read error on CPU", "memory", "evict", Symptom.OS_KERNEL_PANIC, "MC0"),
        (
            "{1}[Hardware Error]: event severity: corrected",
            "hardware",
            "hint",
            Symptom.OS_KERNEL_PANIC,
            "",
        ),
        ("{1}[Hardware Error]: event severity: fatal", "hardware", "evict", Symptom.OS_KERNEL_PANIC, ""),
        (
            "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
            "file system",
            "evict",
            Symptom.DISK_FAULT,
            "nvme0n1p2",
        ),
        (
            "EXT4-fs (sda1): Remounting filesystem read-only",
            "read-only",
            "evict",
            Symptom.DISK_FAULT,
            "sda1",
        ),
        (
            "blk_update_request: critical medium error, dev sdb, sector 88 op 0x0:(READ)",
            "i/o error",
            "evict",
            Symptom.DISK_FAULT,
            "sdb",
        ),
        (
            "XFS (dm-0): Corruption of in-memory data (0x8) detected. Shutting down filesystem.",
            "file system",
            "evict",
            Symptom.DISK_FAULT,
            "dm-0",
        ),
        (
            "nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
            "nvme",
            "tolerate",
            Symptom.DISK_FAULT,
            "nvme1",
        ),
        (
            "nvme nvme1: Removing after probe failure status: -19",
            "nvme gone",
            "evict",
            Symptom.DISK_FAULT,
            "nvme1",
        ),
        (
            "nfs: server 10.0.0.7 not responding, still trying",
            "server",
            "tolerate",
            Symptom.FILESYSTEM_MOUNT,
            "10.0.0.7",
        ),
        (
            "mlx5_core 0000:1a:00.0: poll_health:737:(pid 0): device's health compromised - reached miss count",
            "nic driver",
            "tolerate",
            Symptom.INFINIBAND_ERROR,
            "0000:1a:00",
        ),
        (
            "mlx5_core 0000:1a:00.0 ens1f0np0: Link down",
            "link down",
            "hint",
            Symptom.INFINIBAND_ERROR,
            "ens1f0np0",
        ),
        (
            "bnxt_en 0000:01:00.0 eth2: NIC Link is Down",
            "link down",
            "hint",
            Symptom.INFINIBAND_ERROR,
            "eth2",
        ),
        (
            "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
            "transmit timeout",
            "tolerate",
            Symptom.INFINIBAND_ERROR,
            "eth0",
        ),
        (
            "mlx5_core 0000:1a:00.0 eth4: NETDEV WATCHDOG: CPU: 3: transmit queue 3 timed out 5120 ms",
            "transmit timeout",
            "tolerate",
            Symptom.INFINIBAND_ERROR,
            "eth4",
        ),
        (
            "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "pcie",
            "evict",
            Symptom.GPU_UNAVAILABLE,
            "0000:3b:00",
        ),
    ],
)
def test_a_line_says(line: str, kind: str, confidence: str, symptom: str, device: str) -> None:
    trouble = read_line(line)
    assert trouble is not None
    assert (trouble.kind, trouble.confidence, trouble.symptom, trouble.device) == (kind, confidence, symptom, device)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "traps: python3[4711] general protection fault ip:7f0c sp:7ffd error:0 in libtorch.so",
        "python3[4711]: segfault at 0 ip 0000 sp 0000 error 4 in libc.so.6",
        "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
        "mlx5_core 0000:1a:00.0 ens1f0np0: Link up",
        "blk_update_request: I/O error, dev loop0, sector 0 op 0x0:(READ)",
        "nvme nvme0: 16/0/0 default/read/poll queues",
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB, file-rss:0kB",
        "ice 0000:31:00.0 ens2: NIC Link is up 100 Gbps Full Duplex",
        "",
    ],
)
def test_a_line_that_says_nothing_of_health_is_let_be(line: str) -> None:
    assert read_line(line) is None


def test_an_oom_kill_names_its_process_and_whether_all_of_the_machine_was_short() -> None:
    of_cgroup = read_line(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/jobs/a,"
        "task_memcg=/jobs/a/ranks,task=python,pid=4711,uid=0"
    )
    of_machine = read_line(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/jobs/a,"
        "task=python,pid=4711,uid=0"
    )
    assert of_cgroup is not None and of_machine is not None
    assert (of_cgroup.pid, of_cgroup.memcg, of_cgroup.is_global) == (4711, "/jobs/a/ranks", False)
    assert (of_machine.pid, of_machine.is_global) == (4711, True)


@pytest.mark.parametrize(
    "printed",
    [
        "[Sun Feb 23 16:24:18 2025] {}",
        "[   12.345678] {}",
        "<4>[   12.345678] {}",
        "kern  :warn  : [   12.345678] {}",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {}",
        "Feb 23 16:24:18 host17 kernel: {}",
        "2025-02-23T16:24:18.000000+00:00 host17 kernel: [ 8812.1] {}",
        "4,2450,48843000,-;{}",
        "{}",
    ],
)
def test_a_line_is_read_however_it_was_printed(printed: str) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert without_stamp(printed.format(line)) == line


def test_every_xid_has_a_decision_with_its_reason() -> None:
    xids = catalogue()
    assert set(xids) == set(range(1, 173))
    for xid in xids.values():
        assert xid.meaning and xid.reason
        assert xid.symptom in {"", *TABLE_ONE}
        assert xid.symptom or xid.confidence == "hint"


def test_what_loses_a_gpu_evicts_and_what_an_application_does_itself_does_not() -> None:
    assert all(explained(number).confidence == "evict" for number in (46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140))
    assert all(explained(number).confidence == "hint" for number in (8, 11, 13, 31, 32, 43, 45, 63, 69, 94, 137))


def test_every_action_of_the_catalogue_says_what_to_do() -> None:
    for xid in catalogue().values():
        assert xid.steps or not xid.action, xid


@pytest.mark.parametrize("text", ["00000000:3B:00.0", "PCI:0000:3b:00", "0000:3b:00.0", "3b:00", "0000:3B:00"])
def test_a_pci_address_has_one_form(text: str) -> None:
    assert pci_address(text) == "0000:3b:00"


def test_what_is_no_pci_address_is_refused() -> None:
    with pytest.raises(ValueError, match="give it as 0000:3b:00"):
        pci_address("gpu3")


NAMES = ("EDAC a: 9 UE x", "kernel BUG at", "Oops: 0000 [#1]", "Oops: [#1]", "a: link is down")
LINES = (
    "{}[4242]: segfault at 0 ip 00007fddff17cad8 sp 00007fff06eb3868 error 4 in libc.so.6[167ad8,7fddff03b000+156000]",
    "traps: {}[4242] general protection fault ip:7f0c sp:7ffd error:0 in python3[55d0+2000]",
    "traps: {}[4242] trap invalid opcode ip:7f0c sp:7ffd error:0 in python3[55d0+2000]",
    "{}[4242]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault in python3[7f+1]",
    "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)",
    "{} (4242) used greatest stack depth: 11024 bytes left",
    "{} (4242): Attempted to raise a capability",
    "CPU: 1 UID: 4242 PID: 4242 Comm: {} Not tainted 6.12.0 #1",
    "[   4242]  4242  4242     5123      512    53248        0             0 {}",
    "INFO: task {}:4242 blocked for more than 120 seconds.",
)
FILES = (
    *("Kernel panic - not syncing", "NVRM: GPU 0000:3b:00.0 is lost", "a[#1] SMP"),
    "mce: Uncorrected hardware memory error",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("line", LINES)
def test_the_name_of_a_process_is_no_fault_of_the_machine(name: str, line: str) -> None:
    """Any user may crash a process of any name: with one of these, that evicted the machine."""
    found = read_line(line.format(name))
    assert found is None or found.about == "process", found


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "start",
    ["x[1]: segfault at 0 ip 0 sp 0 error 4", "traps: Oops: [1] general protection fault ip:0 sp:0 error:0"],
)
def test_neither_is_the_name_of_its_file(start: str, file: str) -> None:
    assert read_line(f"{start} in {file}[167ad8,7fddff03b000+156000]") is None
