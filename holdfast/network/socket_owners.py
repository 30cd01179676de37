"""Users that own the TCP sockets of this machine, by the sockets' addresses.

The kernel is asked for one socket (`man 7 sock_diag`), which takes 20 us. Where it does not answer, the tables in
/proc/net are read: all sockets of the machine, for a single one.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

Place = tuple[str, int]
"""IP address and port."""

_SOCK_DIAG = 4
"""Netlink's protocol for questions about sockets (Linux, uapi/linux/netlink.h)."""
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, number, process."""
_BY_FAMILY, _REQUEST = 20, 1
_QUESTION = struct.Struct("=BBxxI")
"""inet_diag_req_v2 up to its socket: family, protocol, states."""
_ADDRESSES = struct.Struct("!HH16s16s")
"""inet_diag_sockid: local and remote port, local and remote address."""
_REST = struct.pack("=Iq", 0, -1)
"""Any interface, and no cookie."""
_ALL_STATES = 0xFFFFFFFF
_UID_AT = _HEADER.size + 64
"""Offset of the uid in an answer, after inet_diag_msg's state, addresses, timer and queues."""
_ANSWER_BYTES_MAX = 8192

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"


def owners_of_listener(place: Place) -> set[int]:
    """Return the uids of what listens at a place; empty: nothing does, or the kernel does not show it."""
    address = ipaddress.ip_address(plain(place[0]))
    anywhere = ("0.0.0.0" if address.version == 4 else "::", 0)
    owner = _asked((str(address), place[1]), anywhere)
    return {owner} if owner is not None else set(_listed((str(address), place[1]), None))


def owners_of_end(local: Place, remote: Place) -> set[int]:
    """Return the uid of the connection's end whose own address is `local`; empty if the kernel does not show it."""
    local, remote = (plain(local[0]), local[1]), (plain(remote[0]), remote[1])
    owner = _asked(local, remote)
    return {owner} if owner is not None else set(_listed(local, remote))


def plain(address: str) -> str:
    """Return an address as it is usually written; an IPv4 address that is mapped into IPv6 as IPv4."""
    found = ipaddress.ip_address(address)
    return str(getattr(found, "ipv4_mapped", None) or found)


def _asked(local: Place, remote: Place) -> int | None:
    """Return the uid of the socket that takes what `remote` sends to `local`; None: no answer."""
    ends = [ipaddress.ip_address(address) for address, _ in (local, remote)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    addresses = _ADDRESSES.pack(local[1], remote[1], *(end.packed for end in ends))
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, _ALL_STATES) + addresses + _REST
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question)
            answer = kernel.recv(_ANSWER_BYTES_MAX, socket.MSG_DONTWAIT)
    except OSError:
        return None
    # Else it is an error: no such socket, or a kernel without this protocol.
    if len(answer) < _UID_AT + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid


def _listed(local: Place, remote: Place | None) -> Iterator[int]:
    """Yield the uids of these sockets in the tables; without `remote` those that listen there or on all addresses."""
    port = f":{local[1]:04X} "
    for table in _TABLES:
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines if port in line):
            address, number = _place(fields[1])
            is_there = number == local[1] and address == local[0]
            if remote is not None:
                is_meant = is_there and _place(fields[2]) == remote
            else:
                on_all = number == local[1] and ipaddress.ip_address(address).is_unspecified
                is_meant = fields[3] == _LISTENS and (is_there or on_all)
            if is_meant:
                yield int(fields[7])


def _place(text: str) -> Place:
    """Read an address as the kernel writes it: words of 32 bits, each in the machine's order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    return plain(str(ipaddress.ip_address(b"".join(words)))), int(port, 16)
