"""The switch of the node: configured addresses, or the default gateway.

An address answers by an ICMP echo reply. Many gateways never reply; for these the neighbour table counts, after the
echo has made the kernel resolve them. An address that has replied once must go on replying, because the table keeps
entries for a while.
"""

from __future__ import annotations

import ipaddress
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable

from holdfast.node.machine import Machine, text
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.sources.network import default_interfaces

ECHO_S = 1.0
ECHOES = 2
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_COMPLETE = 0x2
"""Flag in /proc/net/arp: the hardware address is known."""

Ping = Callable[[Iterable[str], float], set[str]]


class Reachability:
    """Asks the addresses. `ping(addresses, limit_s)` returns those that replied; PermissionError: not permitted.

    Other nodes do not reach a node with a loopback `address` by a switch: it asks those that are named only.
    """

    def __init__(
        self, machine: Machine, policy: InspectionPolicy, ping: Ping | None = None, *, address: str = ""
    ) -> None:
        self._machine = machine
        self._named = listed(policy.switches)
        self._is_local = is_loopback(address)
        self._ping = ping or icmp_echo
        self._has_answered: set[str] = set()
        self._was_neighbour: set[str] = set()

    def read(self) -> Reading:
        """Ask each address, at most twice."""
        if self._is_local and not self._named:
            return Reading(absent="a loopback address needs no switch; [inspections] switches names what must answer")
        addresses = self._named or tuple(dict.fromkeys(default_interfaces(self._machine).values()))
        if not addresses:
            return Reading(absent="no default gateway: name what must answer in [inspections] switches")
        answered, refused = self._ask(addresses)
        self._has_answered |= answered
        neighbours = neighbour_table(self._machine)
        troubles: list[Trouble] = []
        unread: dict[str, str] = {}
        seen: dict[str, str] = {}
        for address in addresses:
            if address in answered:
                seen[address] = "answers"
                continue
            is_neighbour = neighbours.get(address)
            if address in self._has_answered and not refused:
                troubles.append(Trouble(device=address, kind="reach", detail=f"{address} no longer answers"))
            elif is_neighbour:
                self._was_neighbour.add(address)
                seen[address] = "does not answer an echo, its hardware address is known"
            elif is_neighbour is False or address in self._was_neighbour:
                detail = f"no host on the link answers for {address} (neighbour table)"
                troubles.append(Trouble(device=address, kind="reach", detail=detail))
            else:
                unread[address] = f"{address} has never answered: name one that does in [inspections] switches"
        if refused:
            unread[""] = refused
        return Reading(troubles=tuple(troubles), unread=unread, seen=seen)

    def _ask(self, addresses: tuple[str, ...]) -> tuple[set[str], str]:
        answered: set[str] = set()
        try:
            for _ in range(ECHOES):
                missing = [address for address in addresses if address not in answered]
                if missing:
                    answered |= self._ping(missing, ECHO_S)
        except PermissionError:
            return set(), "no echo may be sent: run with CAP_NET_RAW, or set net.ipv4.ping_group_range"
        return answered, ""


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine only."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def switch_check(policy: InspectionPolicy, machine: Machine, address: str) -> Check:
    """Return the check of the switch of a node with this address: two misses in a row (ByteRobust, Table 3)."""
    return Check(
        name="switch",
        source="ICMP echo, /proc/net/arp",
        read=Reachability(machine, policy, address=address).read,
        interval_s=policy.switch_s,
        misses=policy.switch_misses,
        confidence="tolerate",
        symptom=Symptom.INFINIBAND_ERROR,
    )


def neighbour_table(machine: Machine) -> dict[str, bool]:
    """Return for each address whether its hardware address is known; IPv4 only."""
    found: dict[str, bool] = {}
    for line in (text(machine.proc / "net/arp") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3:
            found[fields[0]] = bool(int(fields[2], 16) & _COMPLETE)
    return found


def icmp_echo(addresses: Iterable[str], limit_s: float) -> set[str]:
    """Return the IPv4 addresses that reply in time. A raw socket of root sees all replies: filter by what was sent."""
    kind = socket.SOCK_RAW if os.geteuid() == 0 else socket.SOCK_DGRAM
    waiting: dict[int, str] = {}
    answered: set[str] = set()
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as echo, selectors.DefaultSelector() as selector:
        echo.setblocking(False)
        selector.register(echo, selectors.EVENT_READ)
        token = os.urandom(16)
        for number, address in enumerate(addresses):
            waiting[number] = address
            try:
                echo.sendto(_request(number, token), (address, 0))
            except OSError as error:
                if isinstance(error, PermissionError):
                    raise
                # No route, or the neighbour is known to be gone: no reply.
        deadline = time.monotonic() + limit_s
        while waiting and selector.select(max(0.0, deadline - time.monotonic())):
            number = _reply(echo.recv(1500), token, is_raw=kind == socket.SOCK_RAW)
            if number in waiting:
                answered.add(waiting.pop(number))
    return answered


def _request(number: int, token: bytes) -> bytes:
    identity = os.getpid() & 0xFFFF
    head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, identity, number)
    return struct.pack("!BBHHH", _ECHO_REQUEST, 0, _checksum(head + token), identity, number) + token


def _reply(packet: bytes, token: bytes, *, is_raw: bool) -> int:
    body = packet[(packet[0] & 0xF) * 4 :] if is_raw else packet
    if len(body) < 8 + len(token) or body[0] != _ECHO_REPLY or body[8 : 8 + len(token)] != token:
        return -1
    return int.from_bytes(body[6:8], "big")


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
