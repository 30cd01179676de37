"""Rules for kernel log lines about a machine's health, as data; the first matching rule decides. Pure.

Names in a pattern identify the affected part: `pci`, `interface`, `block` (a disk), `pid`, `memcg`; `device` is only
its common name. `severity`, `driver`, `number` change the result (`holdfast.engines.hardware.kernel_lines`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.symptoms import Symptom

Confidence = Literal["evict", "tolerate", "hint"]
About = Literal["gpu", "nic", "pci", "disk", "process", "machine"]
Reads = Literal["", "xid", "severity", "switch", "pcie", "anybody"]

FILE_SERVER = "server"
"""Kind of lines about a file server, which other machines use as well."""


class KernelRule(msgspec.Struct, frozen=True):
    """One rule. `about`: which names identify the affected part; `reads`: what else of the line matters."""

    kind: str
    about: About
    confidence: Confidence
    symptom: Symptom
    detail: str
    patterns: tuple[str, ...]
    reads: Reads = ""


_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_DISK = r"(?P<block>(?!loop|zram|ram|fd|sr)[\w-]+)"
_DRIVERS = [
    "mlx4_core",
    "mlx4_en",
    "mlx5_core",
    "bnxt_en",
    "bnxt_re",
    "ice",
    "i40e",
    "iavf",
    "ixgbe",
    "igb",
    "e1000e",
    "irdma",
    "ena",
    "efa",
    "gve",
    "qede",
    "qed",
    "hns3",
    "cxgb4",
    "tg3",
]
_NIC = rf"\b(?:{'|'.join(_DRIVERS)}) {_PCI}(?: (?P<interface>[\w.@-]+))?: "

_GPUS = (
    KernelRule(
        "xid", "gpu", "hint", Symptom.CUDA_ERROR, "", (rf"NVRM: Xid \((?:PCI:)?{_PCI}\): (?P<number>\d+)",), "xid"
    ),
    KernelRule(
        "fallen off the bus",
        "gpu",
        "evict",
        Symptom.GPU_UNAVAILABLE,
        "the GPU is no longer reachable over PCIe",
        # The driver writes three lines at once; the first has the address, the last the failure.
        (rf"NVRM: (?:The NVIDIA )?(?:GPU )?(?:at )?(?:PCI:)?{_PCI}\b[\s\S]{{0,200}}?(?:fallen off the bus|is lost)",),
    ),
    KernelRule(
        "fallen off the bus",
        "machine",
        "evict",
        Symptom.GPU_UNAVAILABLE,
        "a GPU is no longer reachable over PCIe",
        (r"NVRM: (?:GPU )?(?:has )?fallen off the bus",),
    ),
    KernelRule(
        "uncorrectable error",
        "gpu",
        "evict",
        Symptom.GPU_MEMORY_ERROR,
        "the GPU has an error that cannot be corrected",
        (
            rf"amdgpu {_PCI}: .{{0,80}}?\b[1-9]\d{{0,9}} (?:new )?uncorrectable hardware errors? detected",
            rf"amdgpu {_PCI}: .{{0,80}}?uncorrectable hardware error\(ERREVENT",
        ),
    ),
    KernelRule(
        "gpu reset",
        "gpu",
        "tolerate",
        Symptom.GPU_UNAVAILABLE,
        "the driver resets a GPU that no longer answers",
        (rf"amdgpu {_PCI}: (?:amdgpu: )?GPU reset begin",),
    ),
    KernelRule(
        "not initialised",
        "gpu",
        "evict",
        Symptom.GPU_UNAVAILABLE,
        "the driver could not initialise the GPU",
        (rf"NVRM: GPU (?:PCI:)?{_PCI}: RmInitAdapter failed",),
    ),
    KernelRule(
        "switch",
        "machine",
        "hint",
        Symptom.GPU_UNAVAILABLE,
        "an NVLink switch reported an error",
        (
            r"nvidia-nvswitch\d*: SXid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<number>\d+), "
            r"(?P<severity>Fatal|Non-fatal)",
        ),
        "switch",
    ),
)

_VICTIM = r"task_memcg=(?P<memcg>[^,]*),task=(?P<device>[^,]*),pid=(?P<pid>\d+)"
_KILLED = r"out of memory: Kill(?:ed)? process (?P<pid>\d+)(?:, UID \d+,)? \((?P<device>[^)]*)\)"

_MEMORY = (
    KernelRule(
        "oom kill",
        "process",
        "hint",
        Symptom.CPU_OOM,
        "the kernel killed a process at the limit of its memory cgroup",
        (rf"oom-kill:constraint=CONSTRAINT_MEMCG,.*?{_VICTIM}", rf"Memory cgroup {_KILLED}"),
    ),
    KernelRule(
        "oom kill",
        "process",
        "hint",
        Symptom.CPU_OOM,
        "the kernel killed a process because the machine ran out of memory",
        (rf"oom-kill:constraint=\w+,.*?{_VICTIM}", _KILLED.replace("out of", "Out of")),
        "anybody",
    ),
)

_KERNEL = (
    KernelRule(
        "panic",
        "machine",
        "evict",
        Symptom.OS_KERNEL_PANIC,
        "the kernel panicked",
        (r"Kernel panic - not syncing",),
    ),
    KernelRule(
        "oops",
        "machine",
        "evict",
        Symptom.OS_KERNEL_PANIC,
        "the kernel hit an internal error",
        (
            r"BUG: unable to handle",
            r"BUG: kernel NULL pointer dereference",
            r"Unable to handle kernel",
            r"kernel BUG at [^\s\[]+:\d+!",
            r"Oops: .*\[#\d+\](?: [A-Z]|$)",
            r"general protection fault.*\[#\d+\](?: [A-Z]|$)",
        ),
    ),
    KernelRule(
        "hard lockup",
        "machine",
        "evict",
        Symptom.OS_KERNEL_PANIC,
        "a processor does not answer interrupts",
        (r"[Ww]atchdog.*hard LOCKUP on cpu (?P<device>\d+)",),
    ),
    KernelRule(
        "soft lockup",
        "machine",
        "tolerate",
        Symptom.OS_KERNEL_PANIC,
        "a processor is stuck in the kernel",
        (r"BUG: soft lockup - (?P<device>CPU#\d+) stuck for \d+s",),
    ),
    KernelRule(
        "rcu stall",
        "machine",
        "hint",
        Symptom.OS_KERNEL_PANIC,
        "a processor blocks the kernel",
        (r"rcu(?:: INFO: rcu)?_\w+ (?:self-)?detected (?:expedited )?stalls?",),
    ),
    KernelRule(
        "hung task",
        "process",
        "hint",
        Symptom.JOB_HANG,
        "a process has been waiting in the kernel for minutes",
        (r"INFO: task (?P<device>.+):(?P<pid>\d+) blocked (?:in I/O wait )?for more than \d+ seconds",),
        "anybody",
    ),
    KernelRule(
        "files",
        "machine",
        "hint",
        Symptom.OS_KERNEL_PANIC,
        "no more files can be opened on this machine",
        (r"VFS: file-max limit \d+ reached",),
    ),
)

_PROCESSORS = (
    KernelRule(
        "memory",
        "machine",
        "evict",
        Symptom.OS_KERNEL_PANIC,
        "the machine's memory has an error that cannot be corrected",
        (
            r"Memory failure: 0x[0-9a-f]+: (?:Killing|.*recovery action.*: (?:Failed|Ignored))",
            r"mce: Uncorrected hardware memory error",
            r"^EDAC (?P<device>\S+): \d+ UE ",
        ),
    ),
    KernelRule(
        "hardware",
        "machine",
        "hint",
        Symptom.OS_KERNEL_PANIC,
        "the firmware reported an error of the hardware",
        (r"\[Hardware Error\]: event severity: (?P<severity>fatal|recoverable|corrected)",),
        "severity",
    ),
    KernelRule(
        "machine check",
        "machine",
        "hint",
        Symptom.OS_KERNEL_PANIC,
        "a processor reported an error of the hardware",
        (r"mce: \[Hardware Error\]: (?P<device>CPU \d+): Machine Check", r"^EDAC (?P<device>\S+): \d+ CE "),
    ),
    KernelRule(
        "cpu temperature",
        "machine",
        "hint",
        Symptom.MFU_DECLINE,
        "a processor is slowed down by its temperature",
        (r"(?P<device>CPU\d+): (?:Core|Package) temperature (?:is )?above threshold",),
    ),
)

_DISKS = (
    KernelRule(
        "read-only",
        "disk",
        "evict",
        Symptom.DISK_FAULT,
        "a file system became read-only after an error",
        (
            rf"EXT[234]-fs \({_DISK}\): Remounting filesystem read-only",
            rf"BTRFS info \(device {_DISK}.*\): forced readonly",
        ),
    ),
    KernelRule(
        "file system",
        "disk",
        "evict",
        Symptom.DISK_FAULT,
        "a file system had an error",
        (
            rf"EXT[234]-fs error \(device {_DISK}\)",
            rf"XFS \({_DISK}\): (?:.*[Ss]hutting down filesystem|.*has been shut down)",
            rf"XFS \({_DISK}\): (?:metadata I/O error|log I/O error|Corruption)",
            rf"BTRFS(?:: error| error| critical) \(device {_DISK}",
        ),
    ),
    KernelRule(
        "i/o error",
        "disk",
        "evict",
        Symptom.DISK_FAULT,
        "a disk could not be read or written",
        (
            rf"(?:I/O error|critical (?:medium|target|nexus) error), dev {_DISK}, sector",
            rf"Buffer I/O error on dev(?:ice)? {_DISK}",
        ),
    ),
    KernelRule(
        "nvme gone",
        "disk",
        "evict",
        Symptom.DISK_FAULT,
        "an NVMe disk was given up",
        (
            r"nvme (?P<block>nvme\d+): (?:Removing after probe failure|Device not ready)",
            r"nvme (?P<block>nvme\d+): (?:.*[Dd]isabling controller|.*frozen state error)",
        ),
    ),
    KernelRule(
        "nvme",
        "disk",
        "tolerate",
        Symptom.DISK_FAULT,
        "an NVMe disk does not answer",
        (r"nvme (?P<block>nvme\d+): (?:controller is down|I/O .*timeout|.*reset controller)",),
    ),
    KernelRule(
        "disk command",
        "machine",
        "hint",
        Symptom.DISK_FAULT,
        "a disk's command failed",
        (
            r"(?P<device>ata\d+(?:\.\d+)?): (?:failed command|SError|hard resetting link|disabled|exception Emask)",
            r"sd (?P<device>[\d:]+): rejecting I/O to offline device",
        ),
    ),
    KernelRule(
        FILE_SERVER,
        "machine",
        "tolerate",
        Symptom.FILESYSTEM_MOUNT,
        "a file server does not answer",
        (
            r"nfs: server (?P<device>\S+) not responding",
            r"Lustre: (?P<device>[\w.-]+): Connection to .* was lost",
            r"ceph: (?P<device>mds\d+) (?:hung|caps stale)",
        ),
    ),
)

_NETWORK = (
    KernelRule(
        "transmit timeout",
        "nic",
        "tolerate",
        Symptom.INFINIBAND_ERROR,
        "a network card no longer sends",
        (
            r"NETDEV WATCHDOG: (?P<interface>[\w.-]+) \([\w-]+\): transmit queue",
            rf"\S+ {_PCI} (?P<interface>[\w.-]+): NETDEV WATCHDOG: ",
        ),
    ),
    KernelRule(
        "nic driver",
        "nic",
        "tolerate",
        Symptom.INFINIBAND_ERROR,
        "the driver of a network card reports a failure",
        (
            _NIC + r".*(?:health compromised|health recovery failed|assert_exit_ptr|[Ff]atal|Hardware Error)",
            _NIC + r".*[Ff]irmware.*(?:error|timeout|unresponsive|not respond|assert)",
            _NIC + r".*(?:[Tt]imeout\. Will cause a leak|[Tt][Xx] ?timeout|tx_timeout|[Kk]eep.?alive watchdog timeout)",
            _NIC
            + r".*(?:Device reset|[Rr]eset (?:adapter|failed)|Adapter (?:removed|failed)|PCIe? (?:link lost|error))",
            _NIC + r".*(?:Cable error|Power budget exceeded|[Hh]igh [Tt]emperature)",
        ),
    ),
    # The counters of the interface say the same exactly, and one flap is to be one alert.
    KernelRule(
        "link down",
        "nic",
        "hint",
        Symptom.INFINIBAND_ERROR,
        "a network link went down",
        (
            _NIC + r".*(?:[Ll]ink (?:is )?[Dd]own|Cable unplugged)",
            r"^(?P<interface>[\w.-]+): (?:NIC )?[Ll]ink is [Dd]own",
        ),
    ),
    KernelRule(
        "pcie",
        "pci",
        "tolerate",
        Symptom.OS_KERNEL_PANIC,
        "a PCIe device reported an error that was not corrected",
        (
            rf"(?P<driver>[\w-]+) {_PCI}: (?:AER: )?PCIe Bus Error: "
            r"severity=Uncorrect\w* \((?P<severity>Fatal|Non-Fatal)\)",
        ),
        "pcie",
    ),
)

RULES: tuple[KernelRule, ...] = (*_GPUS, *_MEMORY, *_KERNEL, *_PROCESSORS, *_DISKS, *_NETWORK)

WORTH_A_LOOK = (
    *("NVRM: ", "amdgpu ", "SXid", "oom-kill", "ut of memory", "Kernel panic", "BUG", "nable to handle", "Oops"),
    *("protection fault", "LOCKUP", "stall", "blocked ", "file-max", "Memory failure", "Hardware Error", "mce: "),
    *("EDAC", "temperature", "EXT", "BTRFS", "XFS", "/O error", "critical ", "nvme", "ata", "offline", "nfs: "),
    *("Lustre", "ceph", "WATCHDOG", "PCIe Bus", "ink is ", "ink down", "ink Down"),
    *(f"{driver} " for driver in _DRIVERS),
)
"""A line without any of these matches no rule; searching for them is faster than trying all rules."""
