"""Meaning of a kernel log line for a machine's health, by `holdfast.engines.hardware.kernel_rules`. Pure."""

from __future__ import annotations

import re

import msgspec

from holdfast.engines.hardware.kernel_rules import RULES, WORTH_A_LOOK, About, Confidence, KernelRule
from holdfast.engines.hardware.xid import explained
from holdfast.pci import pci_address
from holdfast.symptoms import Symptom


class KernelTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of one line."""

    kind: str
    about: About
    """Names, of those below, that identify the affected part."""
    confidence: Confidence
    symptom: str
    detail: str
    device: str = ""
    """Common name of the device."""
    pci: str = ""
    interface: str = ""
    block: str = ""
    pid: int | None = None
    memcg: str = ""
    is_global: bool = False
    """True if the line names a process, but the fault is the machine's."""
    xid: int | None = None


_OF_A_PROCESS = tuple(
    map(
        re.compile,
        (
            # A process that a signal ends: "NAME[PID]: segfault at ... in FILE[...]", and its other forms.
            r"^(?:traps: )?[\s\S]{0,15}\[\d+\]: (?:segfault at|unhandled|potentially)",
            r"^(?:traps: )?[\s\S]{0,15}\[\d+\] (?:general protection fault|trap) ",
            r"^[\s\S]{1,15} invoked oom-killer: ",
            r"^[\s\S]{1,15}: page allocation ",
            r"^[\s\S]{1,15} \(\d+\)(?:: | used )",
            r"\bComm: ",
            r"^process ['`]",
            # The processes that an OOM killer chooses from.
            r"^\[ *\d+\] +\d+ +\d+ ",
        ),
    )
)
"""Lines in which the kernel repeats names that any user gives to a process, of 15 bytes, or to its file. Such a name
may be the text of a fault of the machine. The lines themselves show nothing about its health."""

_COMPILED = tuple((rule, tuple(map(re.compile, rule.patterns))) for rule in RULES)


def read_line(line: str) -> KernelTrouble | None:
    """Read a line. None if it has no known meaning for health."""
    if not any(words in line for words in WORTH_A_LOOK) or any(form.search(line) for form in _OF_A_PROCESS):
        return None
    for rule, patterns in _COMPILED:
        for pattern in patterns:
            if found := pattern.search(line):
                return _trouble(rule, found)
    return None


def _trouble(rule: KernelRule, found: re.Match[str]) -> KernelTrouble:
    names = {name: value for name, value in found.groupdict().items() if value}
    pci = pci_address(names["pci"]) if "pci" in names else ""
    pid = int(names["pid"]) if "pid" in names else None
    device = names.get("interface") or names.get("block") or pci or names.get("device", "")
    trouble = KernelTrouble(
        kind=rule.kind,
        about=rule.about,
        confidence=rule.confidence,
        symptom=rule.symptom.value,
        detail=rule.detail,
        device=f"{device}[{pid}]" if pid is not None else device,
        pci=pci,
        interface=names.get("interface", ""),
        block=names.get("block", ""),
        pid=pid,
        memcg=names.get("memcg", ""),
        is_global=rule.reads == "anybody",
    )
    match rule.reads:
        case "xid":
            return _by_xid(trouble, int(names["number"]), found.string)
        case "severity":
            return _by_severity(trouble, names["severity"])
        case "switch":
            trouble = msgspec.structs.replace(trouble, detail=f"SXid {names['number']}: {trouble.detail}")
            return _by_severity(trouble, names["severity"])
        case "pcie":
            symptom = {"nvidia": Symptom.GPU_UNAVAILABLE, "pcieport": Symptom.OS_KERNEL_PANIC}
            named = symptom.get(names["driver"], Symptom.INFINIBAND_ERROR).value
            return _by_severity(msgspec.structs.replace(trouble, symptom=named), names["severity"])
        case _:
            return trouble


def _by_xid(trouble: KernelTrouble, number: int, line: str) -> KernelTrouble:
    xid = explained(number)
    return msgspec.structs.replace(
        trouble,
        kind=f"xid {number}",
        xid=number,
        confidence=xid.confidence_of(line),
        symptom=xid.symptom,
        detail=f"Xid {number}: {xid.meaning}",
    )


def _by_severity(trouble: KernelTrouble, severity: str) -> KernelTrouble:
    """Set the confidence by severity: only fatal errors are certain; corrected or harmless ones are a hint."""
    word = severity.lower()
    confidence: Confidence = trouble.confidence
    if word == "fatal":
        confidence = "evict"
    elif word == "recoverable":
        confidence = "tolerate"
    return msgspec.structs.replace(trouble, confidence=confidence, detail=f"{trouble.detail} ({word})")


_STAMPS = tuple(
    map(
        re.compile,
        (
            r"^<\d+>",  # dmesg --raw
            r"^\w+\s*:\w+\s*: ",  # dmesg --decode
            r"^\d{4}-\d\d-\d\dT\S+ ",  # dmesg --time-format iso, rsyslog
            r"^\w{3} +\d+ \d\d:\d\d:\d\d ",  # syslog, journalctl
            r"^\S+ kernel: ",
            r"^\[[^\]]*\] ?",
            r"^\d+,\d+,\d+,[^;]*;",  # /dev/kmsg
        ),
    )
)


def without_stamp(line: str) -> str:
    """Return the kernel's message without the stamp of dmesg, journalctl or syslog."""
    # Some print two of them, in either order.
    for stamp in (*_STAMPS, *_STAMPS):
        line = stamp.sub("", line, count=1)
    return line.rstrip("\n")
