"""Alerts that explain a failure whose own evidence shows no reason. They give it its name, and decide nothing."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.symptoms import Root, Symptom, row_of
from holdfast_controller.plan.incident.incident import Alert

_DEVICES = frozenset({Symptom.GPU_UNAVAILABLE.row, Symptom.GPU_MEMORY_ERROR.row, Symptom.DISK_FAULT.row})
_REACH = frozenset({Symptom.FILESYSTEM_MOUNT.row, Symptom.INFINIBAND_ERROR.row, Symptom.OS_KERNEL_PANIC.row})
EXPLAINED_BY: dict[Symptom, frozenset[str]] = {
    Symptom.KILLED_BY_SIGNAL: frozenset({Symptom.CPU_OOM.row}) | _DEVICES | _REACH,
    Symptom.HANG: _DEVICES | _REACH,
    Symptom.FAIL_SLOW: _DEVICES | _REACH | {Symptom.CPU_OVERLOAD.row},
}
"""For each symptom without a reason the rows of Table 1 that may be its reason."""

_SUREST = {"hint": 0, "tolerate": 1, "evict": 2}


def explanation(symptom: Symptom, alerts: Iterable[Alert]) -> Alert | None:
    """Return the alert that explains a failure best: the one that is surest, the newest of these; None if none does."""
    rows = EXPLAINED_BY.get(symptom, frozenset())
    fitting = [alert for alert in alerts if row_of(alert.symptom) in rows and _counts(alert, symptom)]
    return max(fitting, key=lambda alert: (_SUREST[alert.confidence], alert.at), default=None)


def _counts(alert: Alert, symptom: Symptom) -> bool:
    """Return False for a hint about a device or a mount after a kill: neither kills processes."""
    is_of_devices = row_of(alert.symptom) in _DEVICES | _REACH
    return alert.confidence != "hint" or symptom is not Symptom.KILLED_BY_SIGNAL or not is_of_devices


def root_of(alert: Alert) -> Root:
    """Return whose fault it is; unknown if memory ran out, which the script or another process may have used."""
    return Root.UNKNOWN if row_of(alert.symptom) == Symptom.CPU_OOM.row else Root.INFRASTRUCTURE
