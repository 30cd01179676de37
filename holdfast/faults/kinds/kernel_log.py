"""Lines of drivers in the kernel log, written through /dev/kmsg.

The kernel marks lines from user space: their facility is "user" (1), never "kern" (0), and no writer can change that.
So a drill can be distinguished from a real fault, also on another machine; a reader of facility 0 does not see drills.
A line before each drill names it.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget
from holdfast.symptoms import Symptom

KMSG = "/dev/kmsg"
LINE_BYTES_MAX = 900
"""The kernel accepts 1024 bytes with its own prefix, and does not cut lines."""

CRITICAL, ERROR, WARNING, INFO = 2, 3, 4, 6


class KernelLines(FaultStep, frozen=True, kw_only=True, tag="kernel_lines"):
    """Lines with their levels, in order."""

    lines: tuple[tuple[int, str], ...]

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        for level, text in self.lines:
            # The kernel accepts ten lines for each opening of the device and drops the rest.
            descriptor = os.open(KMSG, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"<{level}>{text}\n".encode())
            finally:
                os.close(descriptor)


class XidOptions(FaultOptions, frozen=True, kw_only=True):
    """`xid`: NVIDIA's number of the error. `pci`: the device, as in /sys/bus/pci/devices, without its function."""

    xid: int = 79
    pci: str = "0000:3b:00"

    def symptom(self) -> Symptom | None:
        return XIDS[self.xid].symptom if self.xid in XIDS else None


class NicOptions(FaultOptions, frozen=True, kw_only=True):
    """`pci`: of the adapter, with its function. `port`: its InfiniBand device."""

    pci: str = "0000:5e:00.0"
    port: str = "mlx5_0"


class DiskOptions(FaultOptions, frozen=True, kw_only=True):
    device: str = "nvme1n1"


class RemountOptions(FaultOptions, frozen=True, kw_only=True):
    """`device`: of the file system, a partition."""

    device: str = "nvme1n1p1"


class LineOptions(FaultOptions, frozen=True, kw_only=True):
    """`text`: the line. `level`: 0 (emergency) to 7 (debug)."""

    text: str = ""
    level: int = ERROR


class Xid(NamedTuple):
    """The driver's text after the number, and the row of Table 1."""

    text: str
    symptom: Symptom


_OF_PROCESS = "pid=4242, name=python"
_OF_NOBODY = "pid='<unknown>', name=<unknown>"

XIDS = {
    13: Xid(
        f"{_OF_PROCESS}, Graphics Exception: ESR 0x505648=0x1000e 0x505650=0x20 0x505644=0xd3eff2 0x50564c=0x17f",
        Symptom.CUDA_ERROR,
    ),
    31: Xid(
        f"{_OF_PROCESS}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
        "0x7f3a_5c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        Symptom.CUDA_ERROR,
    ),
    43: Xid(f"{_OF_PROCESS}, Ch 00000008", Symptom.CUDA_ERROR),
    48: Xid(
        f"{_OF_PROCESS}, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at "
        "partition 2, subpartition 0.",
        Symptom.GPU_MEMORY_ERROR,
    ),
    63: Xid(
        f"{_OF_NOBODY}, Row Remapper: New row marked for remapping, reset gpu to activate.",
        Symptom.GPU_MEMORY_ERROR,
    ),
    64: Xid(f"{_OF_NOBODY}, Row Remapper: failed to remap a row.", Symptom.GPU_MEMORY_ERROR),
    74: Xid(
        f"{_OF_NOBODY}, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        Symptom.CUDA_ERROR,
    ),
    79: Xid(f"{_OF_PROCESS}, GPU has fallen off the bus.", Symptom.GPU_UNAVAILABLE),
    94: Xid(f"{_OF_PROCESS}, Contained: SM (0x1). RST: No, D-RST: No", Symptom.GPU_MEMORY_ERROR),
    95: Xid(
        f"{_OF_NOBODY}, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        Symptom.GPU_MEMORY_ERROR,
    ),
    119: Xid(
        f"{_OF_PROCESS}, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 "
        "(GSP_RM_CONTROL) (0x20800a4c 0x4).",
        Symptom.GPU_UNAVAILABLE,
    ),
}
"""The known ones; other numbers get a line with little detail."""

_PCI = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?")
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}")


def _xid(aim: FaultTarget, options: XidOptions) -> tuple[FaultStep, ...]:
    if not 0 < options.xid < 1000:
        raise FaultRefused(
            f"xid={options.xid} is not the number of an Xid: give 1 to 999, such as {', '.join(map(str, XIDS))}"
        )
    known = XIDS.get(options.xid)
    text = known.text if known else f"{_OF_PROCESS}, Ch 00000008"
    lines = [(WARNING, f"NVRM: Xid (PCI:{_pci(options.pci)}): {options.xid}, {text}")]
    if options.xid == 79:
        lines.append((WARNING, f"NVRM: GPU {_pci(options.pci)}.0: GPU has fallen off the bus."))
    return (_lines(aim, *lines),)


def _nic(aim: FaultTarget, options: NicOptions) -> tuple[FaultStep, ...]:
    pci, port = _pci(options.pci), _device(options.port)
    return (
        _lines(
            aim,
            (ERROR, f"mlx5_core {pci}: poll_health:801:(pid 0): device's health compromised - reached miss count"),
            (ERROR, f"mlx5_core {pci}: print_health_info:423:(pid 0): assert_var[0] 0x00000001"),
            (ERROR, f"mlx5_core {pci}: mlx5_health_try_recover:325:(pid 713): handling bad device here"),
            (WARNING, f"infiniband {port}: wait_for_async_commands:760:(pid 713): done with all pending requests"),
        ),
    )


def _io_error(aim: FaultTarget, options: DiskOptions) -> tuple[FaultStep, ...]:
    device = _device(options.device)
    return (
        _lines(
            aim,
            (
                ERROR,
                f"blk_update_request: critical medium error, dev {device}, sector 488396800 op 0x0:(READ) "
                "flags 0x80700 phys_seg 4 prio class 0",
            ),
            (ERROR, f"Buffer I/O error on dev {device}, logical block 61049600, async page read"),
        ),
    )


def _remounted(aim: FaultTarget, options: RemountOptions) -> tuple[FaultStep, ...]:
    device = _device(options.device)
    return (
        _lines(
            aim,
            (
                CRITICAL,
                f"EXT4-fs error (device {device}): ext4_journal_check_start:83: comm python: Detected aborted journal",
            ),
            (CRITICAL, f"EXT4-fs ({device}): Remounting filesystem read-only"),
        ),
    )


def _line(aim: FaultTarget, options: LineOptions) -> tuple[FaultStep, ...]:
    if not options.text.strip() or not options.text.isprintable() or not 0 <= options.level <= 7:
        raise FaultRefused("give the line, printable, with -o text=..., and a level from 0 to 7 with -o level=...")
    return (_lines(aim, (options.level, options.text)),)


def _lines(aim: FaultTarget, *lines: tuple[int, str]) -> KernelLines:
    if too_long := [text for _, text in lines if len(text.encode()) > LINE_BYTES_MAX]:
        raise FaultRefused(f"the line has {len(too_long[0].encode())} bytes: the kernel accepts {LINE_BYTES_MAX}")
    return KernelLines(lines=((INFO, f"holdfast: what follows is drill {aim.mark}"), *lines))


def _pci(text: str) -> str:
    if not _PCI.fullmatch(text):
        raise FaultRefused(f"pci={text} is not a PCI address: give one such as 0000:3b:00")
    return text.lower()


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise FaultRefused(f"{text!r} is not the name of a device: give one such as nvme1n1 or mlx5_0")
    return text


FAULTS = (
    Fault(
        "xid",
        Symptom.GPU_UNAVAILABLE,
        FaultScope.HOST,
        "the line of NVIDIA's driver for an Xid of a GPU",
        _xid,
        needs=(Requirement.KERNEL_LOG,),
        options=XidOptions,
    ),
    Fault(
        "nic-error",
        Symptom.INFINIBAND_ERROR,
        FaultScope.HOST,
        "the lines of a Mellanox adapter whose firmware hangs",
        _nic,
        needs=(Requirement.KERNEL_LOG,),
        options=NicOptions,
    ),
    Fault(
        "io-error",
        Symptom.DISK_FAULT,
        FaultScope.HOST,
        "the lines of a disk that cannot read a sector",
        _io_error,
        needs=(Requirement.KERNEL_LOG,),
        options=DiskOptions,
    ),
    Fault(
        "remounted-read-only",
        Symptom.DISK_FAULT,
        FaultScope.HOST,
        "the lines of a file system whose journal is broken",
        _remounted,
        needs=(Requirement.KERNEL_LOG,),
        options=RemountOptions,
    ),
    Fault(
        "kernel-line",
        None,
        FaultScope.HOST,
        "any line in the kernel log",
        _line,
        needs=(Requirement.KERNEL_LOG,),
        options=LineOptions,
    ),
)
