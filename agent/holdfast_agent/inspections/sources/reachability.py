"""The switch of the node: its default gateway by the kernel's neighbour table, or addresses that the settings name.

Reading the table sends nothing: it shows whether the node's own traffic found the gateway. Only addresses in
`[inspections] switches` are asked, by ICMP echo. Many switches never reply; for these the table counts as well.
"""

from __future__ import annotations

import ipaddress
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.sources.network import default_interfaces

ECHO_S = 1.0
ECHOES = 2
_ECHO_REQUEST, _ECHO_REPLY = 8, 0

FRESH_S = 90.0
"""A failure to resolve an address counts this long: the kernel keeps it, even if nothing is sent there any more."""

_RTM_GETNEIGH, _RTM_NEWNEIGH, _NLMSG_ERROR, _NLMSG_DONE = 30, 28, 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_NUD_INCOMPLETE, _NUD_FAILED, _NUD_NONE = 0x01, 0x20, 0x00
_NDA_DST, _NDA_CACHEINFO = 1, 3
_NLMSG, _NDMSG, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxxxiHBB"), struct.Struct("=HH")
"""Headers of rtnetlink(7)."""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the kernel's neighbour table. `age_s`: time since its state changed."""

    is_known: bool
    """True if its hardware address is known; False if the kernel asked for it without an answer."""
    age_s: float


Ping = Callable[[Iterable[str], float], set[str]]
ReadNeighbours = Callable[[], Mapping[str, Neighbour]]


class Reachability:
    """Watches the switches. `ping(addresses, limit_s)` returns those that replied; PermissionError: not permitted.

    `address`: where other nodes reach this one. If it is a loopback address no traffic of the job passes a switch, so
    the default gateway does not matter, and only switches that are named are watched.
    """

    def __init__(
        self,
        machine: Machine,
        policy: InspectionPolicy,
        ping: Ping | None = None,
        neighbours: ReadNeighbours | None = None,
        *,
        address: str = "",
    ) -> None:
        self._machine = machine
        self._named = listed(policy.switches)
        self._is_local = is_loopback(address)
        self._ping = ping or icmp_echo
        self._neighbours = neighbours or neighbour_table
        self._has_answered: set[str] = set()

    def read(self) -> Reading:
        """Ask the named addresses, at most twice; without any, read what the kernel knows about the gateways."""
        if self._is_local and not self._named:
            return Reading(absent="a loopback address needs no switch; [inspections] switches names what must answer")
        addresses = self._named or tuple(dict.fromkeys(default_interfaces(self._machine).values()))
        if not addresses:
            return Reading(absent="no default gateway: name what must answer in [inspections] switches")
        try:
            answered = self._asked() if self._named else set()
        except PermissionError:
            refused = "no echo may be sent: run with CAP_NET_RAW, or set net.ipv4.ping_group_range"
            return Reading(unread={"": refused})
        self._has_answered |= answered
        neighbours = self._neighbours()
        troubles: list[Trouble] = []
        unread: dict[str, str] = {}
        seen: dict[str, str] = {}
        for address in addresses:
            neighbour = neighbours.get(address)
            if address in answered:
                seen[address] = "answers"
            elif address in self._has_answered:
                troubles.append(_unreached(address, f"{address} no longer answers"))
            elif neighbour and not neighbour.is_known and neighbour.age_s <= FRESH_S:
                troubles.append(_unreached(address, f"no host on the link answers for {address} (neighbour table)"))
            elif neighbour and neighbour.is_known:
                seen[address] = "its hardware address is known"
            elif self._named:
                unread[address] = f"{address} has never answered: name one that does in [inspections] switches"
            else:
                seen[address] = "nothing was sent to it lately, so nothing is known"
        return Reading(troubles=tuple(troubles), unread=unread, seen=seen)

    def _asked(self) -> set[str]:
        answered: set[str] = set()
        for _ in range(ECHOES):
            missing = [address for address in self._named if address not in answered]
            if missing:
                answered |= self._ping(missing, ECHO_S)
        return answered


def _unreached(address: str, detail: str) -> Trouble:
    return Trouble(device=address, kind="reach", detail=detail, shared=f"address {address}")


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine only."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def switch_check(policy: InspectionPolicy, machine: Machine, address: str) -> Check:
    """Return the check of the switch of a node with this address. As many misses in a row count as `switch_misses` says
    (two: ByteRobust, Table 3). The symptom is that of the paper's row for the network, of whatever kind the link is.
    """
    return Check(
        name="switch",
        source="neighbour table; ICMP echo to [inspections] switches",
        read=Reachability(machine, policy, address=address).read,
        interval_s=policy.switch_s,
        misses=policy.switch_misses,
        confidence="tolerate",
        symptom=Symptom.INFINIBAND_ERROR,
    )


def neighbour_table() -> dict[str, Neighbour]:
    """Return the kernel's neighbours by address. Asks the kernel, and sends nothing to the network."""
    found: dict[str, Neighbour] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(ECHO_S)
        body = _NDMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(_NLMSG.pack(_NLMSG.size + len(body), _RTM_GETNEIGH, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        while True:
            for kind, body in _messages(kernel.recv(1 << 16)):
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel refused to list its neighbours")
                if kind == _RTM_NEWNEIGH:
                    found |= neighbour_of(body)


def neighbour_of(body: bytes) -> dict[str, Neighbour]:
    """Return the neighbour of one message by its address; nothing if it is not in use."""
    _, _, state, _, _ = _NDMSG.unpack_from(body)
    attributes = dict(_attributes(body[_NDMSG.size :]))
    if state == _NUD_NONE or _NDA_DST not in attributes or _NDA_CACHEINFO not in attributes:
        return {}
    _, _, updated_ticks, _ = struct.unpack("=IIII", attributes[_NDA_CACHEINFO])
    is_known = not state & (_NUD_INCOMPLETE | _NUD_FAILED)
    age_s = updated_ticks / os.sysconf("SC_CLK_TCK")
    return {str(ipaddress.ip_address(attributes[_NDA_DST])): Neighbour(is_known=is_known, age_s=age_s)}


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _NLMSG.size:
        size, kind, _, _, _ = _NLMSG.unpack_from(data)
        yield kind, data[_NLMSG.size : size]
        data = data[_aligned(max(size, _NLMSG.size)) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[_aligned(max(size, _ATTRIBUTE.size)) :]


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def icmp_echo(addresses: Iterable[str], limit_s: float) -> set[str]:
    """Return the IPv4 addresses that reply in time. Raises PermissionError if this process may not send an echo."""
    waiting: dict[int, str] = {}
    answered: set[str] = set()
    with _echo_socket() as echo, selectors.DefaultSelector() as selector:
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
        # The deadline counts also while replies arrive: a raw socket sees those to other programs too.
        while waiting and (left_s := deadline - time.monotonic()) > 0 and selector.select(left_s):
            number = _reply(echo.recv(1500), token, is_raw=echo.type == socket.SOCK_RAW)
            if number in waiting:
                answered.add(waiting.pop(number))
    return answered


def _echo_socket() -> socket.socket:
    """Return a raw socket where CAP_NET_RAW permits one, else one of those that `net.ipv4.ping_group_range` permits."""
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)


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
