"""DCGM's own health watches, where it is installed: `dcgmi health`."""

from __future__ import annotations

import re
import shutil
import subprocess

from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable

ALL_GPUS = "0"
"""The group that DCGM has from the start."""

_OVERALL = re.compile(r"Overall Health\W+(?:value\W+)?(?P<health>Healthy|Warning|Failure)", re.IGNORECASE)
_SAYS_WHAT = re.compile(r"warning|failure|error", re.IGNORECASE)
_LINES_MAX = 20


def health_of(output: str) -> Reading | None:
    """What its answer says, as a table or as JSON; None: it says nothing of health."""
    found = _OVERALL.search(output)
    if found is None:
        return None
    health = found["health"].lower()
    if health == "healthy":
        return Reading(seen={"": "healthy"})
    lines = tuple(line.strip() for line in output.splitlines() if _SAYS_WHAT.search(line))
    # What it calls a failure may be one that a reset has mended: NVML and the kernel's log are surer.
    detail = f"DCGM's health watches say {health}"
    return Reading(troubles=(Trouble(kind="health", detail=detail, lines=lines[:_LINES_MAX]),))


class Dcgm:
    """Asks `dcgmi`. `limit_s` is that of the program."""

    def __init__(self, limit_s: float = 10.0) -> None:
        self._limit_s = limit_s
        self._has_answered = False

    def read(self) -> Reading:
        """The health of all GPUs together."""
        program = shutil.which("dcgmi")
        if program is None:
            return Reading(absent="dcgmi is not installed")
        try:
            asked = subprocess.run(
                (program, "health", "--check", "--group", ALL_GPUS),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return self._silent(f"dcgmi has not answered for {self._limit_s:g} s")
        reading = health_of(asked.stdout)
        if reading is not None:
            self._has_answered = True
            return reading
        said = (asked.stdout + asked.stderr).strip().splitlines()
        return self._silent(f"dcgmi says {said[-1].strip() if said else f'nothing, exit code {asked.returncode}'}")

    def _silent(self, why: str) -> Reading:
        if self._has_answered:
            return Reading(troubles=(Trouble(kind="service", detail=f"DCGM does not answer any more: {why}"),))
        return unreadable(f"{why}: start nvidia-dcgm, and its watches with dcgmi health --set a --group {ALL_GPUS}")


def dcgm_check(policy: InspectionPolicy) -> Check:
    """The check by DCGM: a hint."""
    return Check(
        name="dcgm",
        source="dcgmi health",
        read=Dcgm().read,
        interval_s=policy.dcgm_s,
        limit_s=15.0,
        symptom=Symptom.GPU_UNAVAILABLE,
    )
