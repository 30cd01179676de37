"""Traffic of the node's InfiniBand and RoCE ports, by the counters in /sys/class/infiniband.

The kernel sees nothing of RDMA: collectives of GPUs on several nodes are in no counter of /proc/net/dev.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.events.parts.devices import PortActivity
from holdfast.node.machine import Machine, entries, number
from holdfast_agent.devices.device_reading import FULL, port_activity

_WORD_BYTES = 4
"""Unit of the data counters of a port."""

_FILES = {"sent_bytes_per_s": "port_xmit_data", "received_bytes_per_s": "port_rcv_data"}


class RdmaPorts:
    """The counters at the last reading."""

    def __init__(self, machine: Machine) -> None:
        self._folder = machine.sys / "class/infiniband"
        self._before: dict[str, dict[str, int]] = {}

    @property
    def has_any(self) -> bool:
        return bool(entries(self._folder))

    def since_last(self, passed_s: float) -> tuple[PortActivity, ...]:
        """Return the traffic of each port since the last call; nothing of a port at its first."""
        before, self._before = self._before, counted_bytes(self._folder)
        return tuple(
            port_activity(name, before[name], now, passed_s) for name, now in self._before.items() if name in before
        )


def counted_bytes(folder: Path) -> dict[str, dict[str, int]]:
    """Return port -> rate -> bytes counted so far, without counters that are full."""
    return {
        f"{card.name}:{place.name}": {
            rate: _WORD_BYTES * words
            for rate, file in _FILES.items()
            if (words := number(place / "counters" / file)) is not None and words != FULL
        }
        for card in entries(folder)
        for place in entries(card / "ports")
    }
