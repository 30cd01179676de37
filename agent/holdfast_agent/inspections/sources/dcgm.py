"""DCGM's health watches through `dcgmi health`, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess

from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable

ALL_GPUS = "0"
"""DCGM's default group."""

_OVERALL = re.compile(r"Overall Health\W+(?:value\W+)?(?P<health>Healthy|Warning|Failure)", re.IGNORECASE)
_NAMES_TROUBLE = re.compile(r"warning|failure|error", re.IGNORECASE)
_LINES_MAX = 20


def health_of(output: str) -> Reading | None:
    """Return the health in an answer (table or JSON); None if it has none."""
    found = _OVERALL.search(output)
    if found is None:
        return None
    health = found["health"].lower()
    if health == "healthy":
        return Reading(seen={"": "healthy"})
    lines = tuple(line.strip() for line in output.splitlines() if _NAMES_TROUBLE.search(line))
    # DCGM may report failures that a reset has repaired: NVML and the kernel log are more reliable.
    detail = f"DCGM's health watches report {health}"
    return Reading(troubles=(Trouble(kind="health", detail=detail, lines=lines[:_LINES_MAX]),))


class Dcgm:
    """Runs `dcgmi`, which gets `limit_s`."""

    def __init__(self, limit_s: float = 10.0) -> None:
        self._limit_s = limit_s
        self._has_answered = False

    def read(self) -> Reading:
        program = shutil.which("dcgmi")
        if program is None:
            return Reading(absent="dcgmi is not installed")
        try:
            done = subprocess.run(
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
        reading = health_of(done.stdout)
        if reading is not None:
            self._has_answered = True
            return reading
        printed = (done.stdout + done.stderr).strip().splitlines()
        return self._silent(
            f"dcgmi printed {printed[-1].strip() if printed else f'nothing, exit code {done.returncode}'}"
        )

    def _silent(self, why: str) -> Reading:
        if self._has_answered:
            return Reading(troubles=(Trouble(kind="service", detail=f"DCGM no longer answers: {why}"),))
        return unreadable(f"{why}: start nvidia-dcgm, and its watches with dcgmi health --set a --group {ALL_GPUS}")


def dcgm_check(policy: InspectionPolicy) -> Check:
    """Return the check by DCGM. What it finds is only a hint."""
    return Check(
        name="dcgm",
        source="dcgmi health",
        read=Dcgm().read,
        interval_s=policy.dcgm_s,
        limit_s=15.0,
        symptom=Symptom.GPU_UNAVAILABLE,
    )
