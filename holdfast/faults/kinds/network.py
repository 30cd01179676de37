"""Faults of nodes' links: down, flapping, slow; two nodes, or a node and the bus, cut off from each other.

They need a separate network for each node (`holdfast up --namespaces`): on loopback there is no link to pull.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from holdfast.embedded.fabric import DEVICE
from holdfast.embedded.layout import Fabric
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget
from holdfast.symptoms import Symptom

BUS = "bus"
_NOBODY = "02:00:00:00:00:00"
_RATE = re.compile(r"[1-9]\d{0,8}[kmg]?bit", re.ASCII)


class LinkDown(FaultStep, frozen=True, kw_only=True, tag="link_down"):
    """The machine's end of a node's link is down: the node loses its carrier. With `flaps`, repeatedly."""

    link: str
    flaps: int = 0
    every_s: float = 0.5

    @property
    def lasts(self) -> bool:
        return not self.flaps

    def do(self) -> None:
        for _ in range(self.flaps):
            self._set("down")
            time.sleep(self.every_s / 2)
            self._set("up")
            time.sleep(self.every_s / 2)
        if not self.flaps:
            self._set("down")

    def undo(self) -> None:
        if Path(f"/sys/class/net/{self.link}").exists():
            self._set("up")

    def _set(self, state: str) -> None:
        _run("ip", "link", "set", self.link, state)


class LimitRate(FaultStep, frozen=True, kw_only=True, tag="slow"):
    """A token bucket at both ends of a node's link."""

    link: str
    namespace: str
    rate: str

    def do(self) -> None:
        for where, device in self._ends:
            bucket = ("tbf", "rate", self.rate, "burst", "64kb", "latency", "100ms")
            _run("tc", *where, "qdisc", "replace", "dev", device, "root", *bucket)

    def undo(self) -> None:
        for where, device in self._ends:
            if _is_there(where, device) and "tbf" in _run("tc", *where, "qdisc", "show", "dev", device, "root"):
                _run("tc", *where, "qdisc", "del", "dev", device, "root")

    @property
    def _ends(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        return ((), self.link), (("-n", self.namespace), DEVICE)


class DropTraffic(FaultStep, frozen=True, kw_only=True, tag="deaf"):
    """Packets to one address are dropped silently. `namespace`: where they come from, "" for the machine itself."""

    namespace: str
    device: str
    address: str

    def do(self) -> None:
        entry = (self.address, "lladdr", _NOBODY, "nud", "permanent", "dev", self.device)
        _run("ip", *self._where, "neigh", "replace", *entry)

    def undo(self) -> None:
        if _is_there(self._where, self.device):
            entry = (self.address, "dev", self.device)
            if _NOBODY in _run("ip", *self._where, "neigh", "show", *entry):
                _run("ip", *self._where, "neigh", "del", *entry)

    @property
    def _where(self) -> tuple[str, ...]:
        return ("-n", self.namespace) if self.namespace else ()


class FlapOptions(FaultOptions, frozen=True, kw_only=True):
    """`times` down and up, one every `every_s` seconds."""

    times: int = 3
    every_s: float = 0.5


class SlowOptions(FaultOptions, frozen=True, kw_only=True):
    """`rate` in the format of tc, such as 10mbit."""

    rate: str = "10mbit"


class CutOptions(FaultOptions, frozen=True, kw_only=True):
    """`off`: the node that cannot be reached, or the bus."""

    off: str = BUS


def _link_down(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    fabric, node = _fabric(aim)
    return (LinkDown(link=fabric.link(node)),)


def _link_flap(aim: FaultTarget, options: FlapOptions) -> tuple[FaultStep, ...]:
    fabric, node = _fabric(aim)
    if not 0 < options.times <= 1000 or not 0 < options.every_s <= 600:
        raise FaultRefused("give times=1 to 1000, and every_s of more than 0 and up to 600")
    return (LinkDown(link=fabric.link(node), flaps=options.times, every_s=options.every_s),)


def _slow_link(aim: FaultTarget, options: SlowOptions) -> tuple[FaultStep, ...]:
    fabric, node = _fabric(aim)
    if not _RATE.fullmatch(options.rate):
        raise FaultRefused(f"rate={options.rate} is not a rate: give one such as 500kbit or 10mbit")
    return (LimitRate(link=fabric.link(node), namespace=fabric.namespace(node), rate=options.rate),)


def _cut(aim: FaultTarget, options: CutOptions) -> tuple[FaultStep, ...]:
    fabric, node = _fabric(aim)
    others = [other for other in aim.info.nodes if other != node]
    if options.off != BUS and options.off not in others:
        raise FaultRefused(f"off={options.off}: give {BUS}, or another node: {', '.join(others)}")
    here, there = (fabric.namespace(node), DEVICE), ("", fabric.bridge)
    address = fabric.gateway
    if options.off != BUS:
        there, address = (fabric.namespace(options.off), DEVICE), fabric.address(options.off)
    return (
        DropTraffic(namespace=here[0], device=here[1], address=address),
        DropTraffic(namespace=there[0], device=there[1], address=fabric.address(node)),
    )


def _fabric(aim: FaultTarget) -> tuple[Fabric, str]:
    assert aim.node is not None
    if aim.info.fabric is None:
        raise FaultRefused(
            "the nodes of this cluster share this machine's loopback, where there is no link to break: start it with "
            "`holdfast up --allow-faults --namespaces`"
        )
    return aim.info.fabric, aim.node


def _is_there(where: tuple[str, ...], device: str) -> bool:
    """Return True if the device still exists; a cluster removes its own when it stops."""
    if where:
        return Path(f"/run/netns/{where[1]}").exists()
    return Path(f"/sys/class/net/{device}").exists()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultRefused(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


_NEEDS = (Requirement.LINKS,)

FAULTS = (
    Fault(
        "link-down",
        Symptom.INFINIBAND_ERROR,
        FaultScope.NODE,
        "the node's link loses its carrier",
        _link_down,
        needs=_NEEDS,
        undo="the link is up",
    ),
    Fault(
        "link-flap",
        Symptom.INFINIBAND_ERROR,
        FaultScope.NODE,
        "the node's link loses its carrier and gets it back, several times",
        _link_flap,
        needs=_NEEDS,
        options=FlapOptions,
    ),
    Fault(
        "slow-link",
        Symptom.MFU_DECLINE,
        FaultScope.NODE,
        "the rate of the node's link is limited, both ways",
        _slow_link,
        needs=_NEEDS,
        options=SlowOptions,
        undo="the limit is removed",
    ),
    Fault(
        "cut",
        Symptom.INFINIBAND_ERROR,
        FaultScope.NODE,
        "the node and the bus, or the node and another (-o off=NODE), cannot reach each other, without any error",
        _cut,
        needs=_NEEDS,
        options=CutOptions,
        undo="they can",
    ),
)
