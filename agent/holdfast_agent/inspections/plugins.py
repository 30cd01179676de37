"""Custom checks: Nagios-style executables and Python entry points.

Exit code 0: healthy. 1: a hint. 2: an alert with the check's `confidence`. 3 and others: unreadable. The first line of
stdout, up to `|`, is the detail. Or all of stdout is JSON, {"detail": "...", "troubles": [{"device": "fan3", ...}]}
with the fields of `Trouble`; then the exit code only shows whether the check could read.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import msgspec

from holdfast.settings.inspections import CommandCheck, InspectionPolicy
from holdfast_agent.companions.environment import public_environment
from holdfast_agent.inspections.check import ENTRY_POINTS, Check, Reading, Trouble, unreadable

OUTPUT_CHARS_MAX = 64 * 1024
_OK, _WARNING, _CRITICAL = 0, 1, 2


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An executable's JSON output."""

    detail: str = ""
    troubles: tuple[Trouble, ...] = ()


class Command:
    """Runs the executable in its own session."""

    def __init__(self, command: CommandCheck) -> None:
        self._words = shlex.split(command.command)
        self._limit_s = command.limit_s

    def read(self) -> Reading:
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=public_environment(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            return unreadable(f"{self._words[0]} cannot be run: {error.strerror}")
        with process:
            try:
                output, _ = process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return unreadable(f"{self._words[0]} took longer than limit_s = {self._limit_s:g} s and was killed")
        return answer_of(output.decode(errors="replace")[:OUTPUT_CHARS_MAX], process.returncode)


def answer_of(output: str, code: int) -> Reading:
    """Return the reading from a check's output and exit code; the check may print JSON or one line as Nagios plugins
    do."""
    text = output.strip()
    first = text.partition("\n")[0].partition("|")[0].strip()
    if code not in (_OK, _WARNING, _CRITICAL):
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return unreadable(f"the check could not read ({ended}): {first or 'no output'}")
    if text.startswith("{"):
        try:
            answer = msgspec.json.decode(text, type=Answer)
        except msgspec.MsgspecError as error:
            return unreadable(f"its JSON is invalid: {error}")
        return Reading(troubles=answer.troubles, seen={"": answer.detail})
    if code == _OK:
        return Reading(seen={"": first})
    lines = tuple(text.splitlines()[1:20])
    confidence: dict[str, Any] = {"confidence": "hint"} if code == _WARNING else {}
    return Reading(troubles=(Trouble(detail=first or f"exit code {code}", lines=lines, **confidence),))


def command_checks(policy: InspectionPolicy) -> list[Check]:
    """Return the checks in [inspections.commands]."""
    return [
        Check(
            name=name,
            source=command.command,
            read=Command(command).read,
            interval_s=command.interval_s,
            limit_s=command.limit_s + 5,
            misses=command.misses,
            confidence=command.confidence,
            symptom=command.symptom,
            scope=command.scope,
        )
        for name, command in policy.commands.items()
    ]


def entry_point_checks(policy: InspectionPolicy, points: Iterable[metadata.EntryPoint] | None = None) -> list[Check]:
    """Return the checks of installed packages. An entry point that fails to load becomes an unreadable check."""
    found: list[Check] = []
    for point in points if points is not None else metadata.entry_points(group=ENTRY_POINTS):
        try:
            check = point.load()(policy)
            if not isinstance(check, Check):
                raise TypeError(f"it returns a {type(check).__name__} instead of a Check")
        except Exception as error:  # noqa: BLE001
            # Third-party code: its failure is reported and must not affect the agent.
            check = _broken(point, f"{type(error).__name__}: {error}")
        found.append(check)
    return found


def _broken(point: metadata.EntryPoint, why: str) -> Check:
    return Check(
        name=point.name,
        source=point.value,
        read=lambda: unreadable(f"the entry point {point.value} does not give a check: {why}"),
        interval_s=3600.0,
    )
