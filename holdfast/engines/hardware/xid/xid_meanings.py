"""Meaning of every Xid and Holdfast's reaction to it, read once from the data beside this file."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

Confidence = Literal["evict", "tolerate", "hint"]

_PATTERN = "again on one GPU: dcgmi diag, then the vendor's field diagnostics; else look at the application"

STEPS: dict[str, str] = {
    "RESTART_APP": "start the application again",
    "IGNORE": "nothing",
    "RESET_GPU": "take the node out of service and reset the GPU (nvidia-smi --gpu-reset)",
    "RESTART_BM": "take the node out of service and restart the machine",
    "RESTART_VM": "restart the virtual machine that has the GPU",
    "CHECK_MECHANICALS": "take the node out of service; look at the seating of the board and at its cables",
    "CONTACT_SUPPORT": "ask the vendor, with the output of nvidia-bug-report.sh",
    "UPDATE_SWFW": "bring driver and firmware to versions that fit each other",
    "CHECK_APP/CUDA": "look at the application: run it under compute-sanitizer",
    "CHECK_UVM": "reset the GPU if virtual GPUs are used; else nothing",
    "INVESTIGATE_SW": "look at the application and at the driver's version",
    "INVESTIGATE_SW_USER": "find out whether somebody took the link down on purpose",
    "INVESTIGATE_LINK_SI": "look at the link's signal: cables, transceivers, counters of the switch",
    "WORKFLOW_XID_13": _PATTERN,
    "WORKFLOW_XID_31": _PATTERN,
    "WORKFLOW_XID_45": "follow the Xid before it; if there is none, restart the fabric manager",
    "WORKFLOW_XID_48": "drain and reset the GPU; without an Xid 63 or 64 beside it, run the field diagnostics",
    "WORKFLOW_NVLINK_ERR": "reset the GPU; twice on the same link, look at its mechanics and run the field diagnostics",
    "WORKFLOW_NVLINK5_ERR": "fatal: reset the GPU; the registers in the line decode to the cause by the vendor's table",
    "XID_137_FLOW": "look at the application: run it under compute-sanitizer",
    "XID_154": "follow the action in the line",
    "SYMPATHETIC_REPORT_SOLO": "follow the accompanying Xid; without one, ask the vendor",
    "IGNORE (sympathetic)": "follow the accompanying Xid",
}
"""Actions of the catalogue's buckets for an engineer."""


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid."""

    xid: int
    mnemonic: str
    gpus: str
    """Generations of GPUs that have it."""
    action: str
    """Bucket of the catalogue (see `STEPS`)."""
    investigate: str
    """Bucket of the catalogue."""
    confidence: Confidence
    symptom: str
    meaning: str
    reason: str
    """Reason for `confidence`."""
    hint_if: str
    """Lines that match this are only a hint."""

    def confidence_of(self, line: str) -> Confidence:
        if self.hint_if and re.search(self.hint_if, line, re.IGNORECASE):
            return "hint"
        return self.confidence

    @property
    def steps(self) -> tuple[str, ...]:
        """Actions for an engineer, the most urgent first."""
        first, later = STEPS.get(self.action, ""), STEPS.get(self.investigate, "")
        if later in ("", first, STEPS["IGNORE"]):
            return (first,) if first else ()
        return (first, f"if it recurs, {later}") if first else (later,)


@cache
def catalogue() -> dict[int, Xid]:
    """Return every known Xid by its number, read once from `catalogue.csv`."""
    text = (resources.files("holdfast.engines.hardware.xid") / "catalogue.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {xid.xid: xid for xid in (msgspec.convert(row, Xid, strict=False) for row in rows)}


def explained(number: int) -> Xid:
    """Return the Xid of this number; an unknown one proves nothing."""
    unknown = Xid(
        xid=number,
        mnemonic="",
        gpus="",
        action="CONTACT_SUPPORT",
        investigate="",
        confidence="hint",
        symptom="",
        meaning="not in this catalogue, which is older than the driver",
        reason="an unknown Xid proves nothing",
        hint_if="",
    )
    return catalogue().get(number, unknown)
