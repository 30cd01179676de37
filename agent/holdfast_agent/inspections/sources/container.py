"""The container runtime, asked over its socket; one that accepts and does not answer hangs.

Docker speaks HTTP; containerd and CRI-O speak gRPC, which begins with an HTTP/2 settings frame.
"""

from __future__ import annotations

import socket
from pathlib import Path

from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble

ANSWER_S = 3.0

_PING = b"GET /_ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 0x4

_SOCKETS = {
    "docker": ("docker.sock", "podman/podman.sock"),
    "grpc": ("containerd/containerd.sock", "crio/crio.sock", "k3s/containerd/containerd.sock"),
}


class Containers:
    """Asks every runtime that has a socket here."""

    def __init__(self, machine: Machine) -> None:
        self._run = machine.run
        self._known: set[tuple[str, Path]] = set()

    def read(self) -> Reading:
        self._known |= {
            (kind, self._run / name)
            for kind, names in _SOCKETS.items()
            for name in names
            if (self._run / name).is_socket()
        }
        troubles: list[Trouble] = []
        unread: dict[str, str] = {}
        seen: dict[str, str] = {}
        for kind, path in sorted(self._known):
            try:
                answer(kind, path)
            except PermissionError:
                unread[str(path)] = f"{path} may not be used: run as root, or in the group that owns it"
            except OSError as error:
                why = error.strerror or "no answer in time"
                troubles.append(Trouble(device=str(path), kind="answer", detail=f"the runtime does not answer: {why}"))
            else:
                seen[str(path)] = "answers"
        if not self._known:
            return Reading(absent=f"no socket of a container runtime below {self._run}")
        return Reading(troubles=tuple(troubles), unread=unread, seen=seen)


def container_check(policy: InspectionPolicy, machine: Machine) -> Check:
    """Return the check of container runtimes."""
    return Check(
        name="container",
        source="sockets of docker, podman, containerd, CRI-O",
        read=Containers(machine).read,
        interval_s=policy.container_s,
        misses=2,
        confidence="tolerate",
        symptom=Symptom.CONTAINER_ERROR,
        scope="host",
    )


def answer(kind: str, path: Path) -> None:
    """Ask a runtime. Raises OSError unless it answers as such a runtime does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as runtime:
        runtime.settimeout(ANSWER_S)
        runtime.connect(str(path))
        runtime.sendall(_PING if kind == "docker" else _PREFACE)
        head = runtime.recv(64)
    if kind == "docker":
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(0, f"it answers {head[:32].decode(errors='replace')!r}")
    elif len(head) < 9 or head[3] != _SETTINGS:
        raise OSError(0, "it does not speak gRPC")
