"""The clock: its offset as known to the kernel from NTP or PTP, and steps."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import msgspec

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable

_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), on 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's clock state, in seconds."""

    is_synchronised: bool
    offset_s: float
    error_s: float


def kernel_clock() -> ClockState:
    """Read the kernel's clock state without changing it."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex failed")
    unit = 1e-9 if timex.status & _STA_NANO else 1e-6
    return ClockState(
        is_synchronised=not timex.status & _STA_UNSYNC and state != _TIME_ERROR,
        offset_s=timex.offset * unit,
        error_s=timex.esterror * 1e-6,
    )


class Clock:
    """`difference()` returns the wall clock minus a clock that is never set."""

    def __init__(
        self,
        policy: InspectionPolicy,
        ask: Callable[[], ClockState] = kernel_clock,
        difference: Callable[[], float] = lambda: time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._skew_s_max = policy.clock_skew_s_max
        self._ask = ask
        self._difference = difference
        self._before: float | None = None

    def read(self) -> Reading:
        """Return the known skew, and whether the clock was set since the last reading."""
        troubles: list[Trouble] = []
        before, self._before = self._before, self._difference()
        if before is not None and abs(step_s := self._before - before) > self._skew_s_max:
            detail = f"the clock was set by {step_s:+.3f} s since the last look"
            troubles.append(Trouble(kind="step", detail=detail, is_momentary=True))
        state = self._ask()
        if not state.is_synchronised:
            why = unreadable("the clock is not synchronized, so its skew is unknown: run chronyd, ntpd or ptp4l")
            return msgspec.structs.replace(why, troubles=tuple(troubles))
        off_s = max(abs(state.offset_s), state.error_s)
        if off_s > self._skew_s_max:
            detail = f"the clock is off by {off_s:.3f} s, the limit is {self._skew_s_max:g} s"
            troubles.append(Trouble(kind="skew", detail=detail))
        return Reading(troubles=tuple(troubles), seen={"": f"off by {off_s * 1e3:.1f} ms at most"})


def clock_check(policy: InspectionPolicy) -> Check:
    """Return the check of the clock. Skew breaks no training, but makes the order of logs doubtful."""
    return Check(name="clock", source="adjtimex", read=Clock(policy).read, interval_s=policy.clock_s, scope="host")
