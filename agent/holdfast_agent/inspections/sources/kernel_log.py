"""The kernel log, followed through /dev/kmsg; each line is this node's, the machine's, or another node's."""

from __future__ import annotations

import errno
import os
import sys

import msgspec

from holdfast.engines.hardware.kernel_lines import read_line
from holdfast.engines.hardware.kernel_rules import FILE_SERVER
from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.attribution import NodeHardware, belongs
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable
from holdfast_agent.inspections.node_hardware import HardwareFinder

KERNEL = "kernel"

RECORD_BYTES_MAX = 8192
RECORDS_MAX = 300
"""Maximum number of records per reading. There are ten readings a second at most, so a flood cannot occupy a core."""

QUIET_S = 30.0
"""Drivers repeat messages; one failure is one alert."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Read position: the number of the last record read in this boot."""

    boot_id: str
    sequence: int


class KernelLog:
    """Follows the log from now on, from an earlier agent's position, or `from_start` of what is left of this boot."""

    def __init__(
        self,
        machine: Machine,
        finder: HardwareFinder,
        recalled: Position | None = None,
        *,
        from_start: bool = False,
    ) -> None:
        self._path = machine.dev / "kmsg"
        self._boot_id = machine.boot_id
        self._finder = finder
        same_boot = recalled is not None and recalled.boot_id == self._boot_id
        self._last = recalled.sequence if recalled is not None and same_boot else -1
        self._skips = not (from_start or same_boot)
        self._records_max = sys.maxsize if from_start else RECORDS_MAX
        self._descriptor: int | None = None

    @property
    def position(self) -> Position | None:
        """The read position; None until it is known."""
        return None if self._skips else Position(boot_id=self._boot_id, sequence=self._last)

    def wake(self) -> int | None:
        """Return a descriptor that is readable when there is a line."""
        return self._descriptor

    def read(self) -> Reading:
        self._finder.note_processes()
        if (reading := self._open()) is not None:
            return reading
        lost = at_end = False
        troubles: list[Trouble] = []
        hardware: NodeHardware | None = None
        assert self._descriptor is not None
        fresh = 0
        while fresh < self._records_max:
            try:
                record = os.read(self._descriptor, RECORD_BYTES_MAX)
            except BlockingIOError:
                self._skips = False
                at_end = True
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The kernel has overwritten the next record; reading continues with the oldest one.
                    lost = True
                    continue
                return self._give_up(error)
            sequence, line = _parsed(record)
            # Records before the position are read but not examined.
            if sequence <= self._last:
                continue
            self._last = sequence
            if self._skips:
                continue
            fresh += 1
            found = read_line(line)
            if found is None:
                continue
            hardware = hardware or self._finder.find()
            owner = belongs(found, hardware)
            if owner is not None:
                troubles.append(
                    Trouble(
                        device=found.device,
                        kind=found.kind,
                        detail=found.detail,
                        lines=(line,),
                        confidence=found.confidence if owner.is_certain else "hint",
                        symptom=found.symptom,
                        scope=owner.scope,
                        is_momentary=True,
                        shared=f"file server {found.device}" if found.kind == FILE_SERVER else "",
                    )
                )
        if lost:
            seen = "lines were overwritten before they could be read"
        elif at_end:
            seen = "read up to its end"
        else:
            seen = f"read {fresh} lines; the next reading continues"
        return Reading(troubles=tuple(troubles), seen={str(self._path): seen})

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> Reading | None:
        if self._descriptor is not None:
            return None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            return unreadable(
                f"{self._path} may not be read: run as root or with CAP_SYSLOG, or set kernel.dmesg_restrict = 0"
            )
        except FileNotFoundError:
            return unreadable(f"there is no {self._path}: in a container, give it the host's (--device=/dev/kmsg)")
        except OSError as error:
            return unreadable(f"{self._path} cannot be opened: {error.strerror}")
        self._descriptor = descriptor
        return None

    def _give_up(self, error: OSError) -> Reading:
        self.close()
        return unreadable(f"{self._path} cannot be read: {error.strerror}")


def kernel_check(policy: InspectionPolicy, log: KernelLog) -> Check:
    """Return the check that follows the kernel's log."""
    return Check(
        name=KERNEL,
        source="/dev/kmsg",
        read=log.read,
        wake=log.wake,
        interval_s=policy.kernel_s,
        quiet_s=QUIET_S,
        symptom=Symptom.OS_KERNEL_PANIC,
    )


def _parsed(record: bytes) -> tuple[int, str]:
    """Return number and line of `priority,sequence,microseconds,flags;line`, without lines that begin with a blank."""
    head, _, rest = record.partition(b";")
    line = rest.split(b"\n", 1)[0].decode(errors="replace")
    try:
        return int(head.split(b",")[1]), line
    except (IndexError, ValueError):
        return -1, line
