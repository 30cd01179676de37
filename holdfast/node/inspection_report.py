"""Results of `holdfast inspect`, as the inspecting program hands them to the one that shows them."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "hint", "tolerate", "evict", "unreadable", "absent"]
"""`unreadable`: nothing is known, with why and the cure; `absent`: there is no such thing here."""

EXIT_OK, EXIT_WARNING, EXIT_CRITICAL, EXIT_UNKNOWN = 0, 1, 2, 3
"""Exit codes of Nagios plugins."""


class InspectedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of one check for one device, or for all that it looks at if `device` is ""."""

    check: str
    device: str = ""
    state: State
    detail: str = ""
    symptom: str = ""
    source: str = ""
    lines: tuple[str, ...] = ()


def exit_code(found: tuple[InspectedDevice, ...]) -> int:
    """Return the worst of it: without doubt, then suspected, then not known."""
    states = {device.state for device in found}
    if "evict" in states:
        return EXIT_CRITICAL
    if states & {"tolerate", "hint"}:
        return EXIT_WARNING
    return EXIT_UNKNOWN if "unreadable" in states else EXIT_OK
