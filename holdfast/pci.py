"""Addresses of PCI devices, in the different forms of programs. Pure."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)


def pci_address(text: str) -> str:
    """`0000:3b:00`, from NVML's `00000000:3B:00.0`, the driver's `PCI:0000:3b:00`, sysfs' `0000:3b:00.0`, or `3b:00`.

    The function is left out: the driver does not name it. Raises ValueError if it is none of these.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an address of a PCI device: give it as 0000:3b:00")
    domain, bus, device = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}"
