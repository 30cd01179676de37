"""Network interfaces from /sys/class/net: links that are or were down, vanished cards, error rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.node.machine import Machine, entries, number, text
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble

IFF_UP = 0x1
PACKETS_MIN = 1000
"""Minimum number of packets for an error ratio."""

_ERRORS = ("rx_errors", "tx_errors")
_DROPS = ("rx_missed_errors", "tx_dropped", "rx_fifo_errors")
"""`rx_dropped` is left out: it also counts packets of unused protocols."""


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One interface in one reading. `downs`: carrier losses since boot. `is_wanted`: administratively up."""

    name: str
    is_wanted: bool
    has_carrier: bool
    operstate: str
    downs: int
    packets: int
    errors: int
    drops: int

    @property
    def is_up(self) -> bool:
        """True if it can carry packets. Drivers without link detection report `unknown`."""
        return self.has_carrier and self.operstate in ("up", "unknown")


class Network:
    """Watches a node's interfaces, or those that the settings name."""

    def __init__(self, machine: Machine, policy: InspectionPolicy) -> None:
        self._machine = machine
        self._policy = policy
        self._needed = frozenset(listed(policy.interfaces))
        self._before: dict[str, Interface] = {}
        self._been_up: set[str] = set()
        self._cards: set[str] = set()

    def read(self) -> Reading:
        folder = self._machine.sys / "class/net"
        if (foreign := self._foreign(folder)) is not None:
            return Reading(unread={"": foreign})
        found = {name: interface_at(folder / name) for name in self._names(folder)}
        troubles: list[Trouble] = []
        for name, interface in found.items():
            troubles += self._of(interface, self._before.get(name))
            if interface.is_up or interface.packets:
                self._been_up.add(name)
        # Names may be InfiniBand cards; a name in neither place is missing here.
        self._cards |= {entry.name for entry in entries(self._machine.sys / "class/infiniband")}
        gone = (self._been_up | self._needed) - self._cards - set(found)
        troubles += [Trouble(device=name, kind="gone", detail="the interface has vanished") for name in sorted(gone)]
        self._before = found
        if not found and not gone:
            return Reading(absent=f"no network interface in {folder} but lo")
        return Reading(troubles=tuple(troubles), seen={name: _words(found[name]) for name in found})

    def _names(self, folder: Path) -> list[str]:
        """Return cards, bonds, and interfaces of the default route: virtual ones come and go with containers."""
        names = [entry.name for entry in entries(folder) if (entry / "operstate").exists() and entry.name != "lo"]
        if self._needed:
            return [name for name in names if name in self._needed]
        routed = default_interfaces(self._machine)
        return [
            name
            for name in names
            if name in routed or (folder / name / "device").exists() or (folder / name / "bonding").is_dir()
        ]

    def _foreign(self, folder: Path) -> str | None:
        """Check that /sys shows this network namespace: it shows the one it was mounted in."""
        listing = text(self._machine.proc / "net/dev")
        if not folder.is_dir():
            return f"there is no {folder}: mount sysfs"
        if listing is None:
            return None
        own = {line.partition(":")[0].strip() for line in listing.splitlines()[2:]}
        shown = {entry.name for entry in entries(folder) if (entry / "operstate").exists()}
        if own == shown:
            return None
        return f"{folder} shows another network namespace: mount sysfs again in this one"

    def _of(self, now: Interface, before: Interface | None) -> list[Trouble]:
        troubles: list[Trouble] = []
        is_missed = now.name in self._been_up or now.name in self._needed or now.packets > 0
        is_down = now.is_wanted and not now.is_up and is_missed
        if is_down:
            troubles.append(Trouble(device=now.name, kind="link", detail=f"the link is down: {_words(now)}"))
        elif not now.is_wanted and now.name in self._needed | self._been_up:
            troubles.append(Trouble(device=now.name, kind="link", detail="the interface was taken down"))
        if before is None:
            return troubles
        # The current outage is reported already.
        flaps = now.downs - before.downs - (1 if not now.is_up and before.is_up else 0)
        if flaps > 0:
            troubles.append(
                Trouble(
                    device=now.name,
                    kind="flap",
                    detail=f"the link went down and came back {flaps} times since the last look",
                    is_momentary=True,
                    times=flaps,
                )
            )
        packets = now.packets - before.packets
        for kind, count, ratio_max in (
            ("errors", now.errors - before.errors, self._policy.error_ratio_max),
            ("drops", now.drops - before.drops, self._policy.drop_ratio_max),
        ):
            if packets >= PACKETS_MIN and count > packets * ratio_max:
                troubles.append(
                    Trouble(
                        device=now.name,
                        kind=kind,
                        detail=f"{count} {kind} in {packets} packets, the limit is {ratio_max:.2%}",
                        confidence="tolerate" if kind == "errors" else "hint",
                    )
                )
        return troubles


def network_check(policy: InspectionPolicy, machine: Machine) -> Check:
    """Return the check of network interfaces."""
    read: Callable[[], Reading] = Network(machine, policy).read
    return Check(
        name="network",
        source="/sys/class/net",
        read=read,
        interval_s=policy.network_s,
        compares=True,
        confidence="tolerate",
        symptom=Symptom.INFINIBAND_ERROR,
    )


def interface_at(folder: Path) -> Interface:
    """Return the sysfs state of one interface. An interface that is taken down has no `carrier`."""
    downs = number(folder / "carrier_down_count")
    statistics = folder / "statistics"

    def total(*names: str) -> int:
        return sum(number(statistics / name) or 0 for name in names)

    return Interface(
        name=folder.name,
        is_wanted=bool((number(folder / "flags") or 0) & IFF_UP),
        has_carrier=number(folder / "carrier") == 1,
        operstate=text(folder / "operstate") or "",
        # Kernels before 4.16 count both directions together.
        downs=downs if downs is not None else (number(folder / "carrier_changes") or 0) // 2,
        packets=total("rx_packets", "tx_packets"),
        errors=total(*_ERRORS),
        drops=total(*_DROPS),
    )


def default_interfaces(machine: Machine) -> dict[str, str]:
    """Return interfaces with a default route, and the gateway of each."""
    found: dict[str, str] = {}
    for line in (text(machine.proc / "net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & 0x2:
            octets = bytes.fromhex(fields[2])[::-1]
            found[fields[0]] = ".".join(map(str, octets))
    return found


def _words(interface: Interface) -> str:
    carrier = "carrier" if interface.has_carrier else "no carrier"
    return f"{interface.operstate or 'state unknown'}, {carrier}" if interface.is_wanted else "taken down"
