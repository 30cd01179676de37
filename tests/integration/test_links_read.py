"""What a node knows of its network, on real connections: over a link that is cut, to a peer that does not read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engines.hang.silent_links import RETRIES_LEAST, silent_links
from holdfast.events.parts.traces import NodeLinks
from holdfast_agent.tracer.links import links_of

PROC = Path("/proc")
HERE, THERE = "10.77.31.1", "10.77.31.2"
LIMIT_S = 20.0

LISTENS = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 4000))
print("ready", flush=True)
one, _ = listener.accept()
print("accepted", flush=True)
if sys.argv[2] == "reads":
    while one.recv(1 << 16):
        pass
time.sleep(600)
"""
SENDS = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], 4000))
one.send(b"hello")
print("ready", flush=True)
sys.stdin.readline()
one.setblocking(False)
try:
    while True:
        one.send(b"x" * 65536)
except BlockingIOError:
    pass
print("sent", flush=True)
time.sleep(600)
"""


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


class Two:
    """Two machines with a link between them; `run` starts a Python program on one."""

    def __init__(self) -> None:
        self.names = (f"hf-links-a-{os.getpid()}", f"hf-links-b-{os.getpid()}")
        self.processes: list[subprocess.Popen[str]] = []

    def make(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        a, b = self.names
        ip("-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b)
        for name, address in zip(self.names, (HERE, THERE), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def run(self, place: int, program: str, *words: str) -> subprocess.Popen[str]:
        inside = ("ip", "netns", "exec", self.names[place], sys.executable, "-c", program, *words)
        process = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def cut(self) -> None:
        ip("-n", self.names[1], "route", "add", "blackhole", f"{HERE}/32")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for name in self.names:
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, check=False)


@pytest.fixture
def two() -> Iterator[Two]:
    machines = Two()
    try:
        try:
            machines.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield machines
    finally:
        machines.end()


def seen_once(look: Callable[[], NodeLinks], holds: Callable[[NodeLinks], bool]) -> NodeLinks:
    until = time.monotonic() + LIMIT_S
    while not holds(seen := look()):
        assert time.monotonic() < until, f"not seen within {LIMIT_S:g} s: {seen}"
        time.sleep(0.05)
    return seen


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "sent\n"


def test_a_cut_link_names_both_ends(two: Two) -> None:
    listens = two.run(1, LISTENS, THERE, "reads")
    sends = two.run(0, SENDS, THERE)
    assert listens.stdout is not None and listens.stdout.readline() == "accepted\n"

    def here() -> NodeLinks:
        return links_of("node-a", {3: sends.pid}, {}, PROC)

    healthy = here()
    assert (healthy.addresses, healthy.silent_peers, healthy.unread) == ((HERE,), (), "")

    two.cut()
    tell(sends)
    cut = seen_once(here, lambda seen: any(peer.retries >= RETRIES_LEAST for peer in seen.silent_peers))
    (peer,) = cut.silent_peers
    assert (peer.rank, peer.address, peer.peer, peer.connections) == (3, HERE, THERE, 1)
    assert peer.bytes > 0

    there = links_of("node-b", {7: listens.pid}, {}, PROC)
    assert there.addresses == (THERE,) and there.silent_peers == (), "whoever only receives knows nothing of it"
    (link,), notes = silent_links((cut, there))
    assert (link.nodes, notes) == (("node-a", "node-b"), [])


def test_a_peer_that_does_not_read_is_no_matter_of_the_network(two: Two) -> None:
    listens = two.run(1, LISTENS, THERE, "sleeps")
    sends = two.run(0, SENDS, THERE)
    assert listens.stdout is not None and listens.stdout.readline() == "accepted\n"
    tell(sends)
    table = PROC / str(sends.pid) / "net/tcp"
    until = time.monotonic() + LIMIT_S
    # Its timer asks whether there is room again (04), and has asked before.
    while not any(line.split()[5].startswith("04:") for line in table.read_text().splitlines()[1:]):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert links_of("node-a", {3: sends.pid}, {}, PROC).silent_peers == ()


def test_a_process_that_is_gone_is_said_to_be_unread() -> None:
    seen = links_of("node-a", {0: 999_999_999, 1: os.getpid()}, {}, PROC)
    assert "rank 0" in seen.unread and "rank 1" not in seen.unread
