"""Nodes with real vaults, their agents and ranks played by the test; and a vault played by the test itself."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from holdfast.node import frames
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import Answer, Assign, Done, End, Follow, Notice, SealedStep, Serve, ShardName
from holdfast.orders.backup import BackupOrder, Replica, VaultAddress
from holdfast.trainer.vault_client.client import VaultClient
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers.peer_link import ask, dial
from holdfast_vault.peers.peer_messages import AskHeld, Held, RankSteps
from holdfast_vault.peers.trust import PeerTrust
from tests.warm_python import WarmHoldfast

TOKEN = "the token of the job"
CHUNK = 4 << 20
WAIT_S = 30.0
PATIENT = f"""
from holdfast_vault.peers import peer_messages
from holdfast_vault.peers.fetching import discovery, fetcher
from holdfast_vault.peers.sending import replicas
from holdfast_vault.main import main
peer_messages.SEAL_WAIT_S = replicas.WAIT_S = {WAIT_S}
discovery.FIND_S = discovery.GRACE_S = fetcher.ASSIGNMENT_WAIT_S = {WAIT_S}
main()
"""
"""A vault that waits for the answers of others, for their steps, and for its order, as long as a busy machine makes
them take."""

T = TypeVar("T")


class VaultNode:
    """One node: a vault in a process of its own."""

    def __init__(self, root: Path, node: str, *, is_patient: bool = False, log: Path | None = None) -> None:
        self.node = node
        self._log = log
        self._program = ("-c", PATIENT) if is_patient else ("-m", "holdfast_vault")
        self.directory = root / node
        self.directory.mkdir()
        # Bound and not listening: its vault may listen beside it, also the next one, and nobody else is given the port.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        (self.directory / vault_socket.PORT).write_text(f"{self._reserved.getsockname()[1]}\n")
        self._agents: list[socket.socket] = []
        self.process: WarmHoldfast | None = None

    def start(self, *arguments: str) -> VaultNode:
        """Start its vault, or start it anew."""
        reading, writing = os.pipe()
        command = (sys.executable, *self._program, "--state-dir", str(self.directory))
        with nullcontext() if self._log is None else self._log.open("ab") as log:
            self.process = WarmHoldfast(
                (*command, "--ready-fd", str(writing), *arguments),
                pass_fds=[writing],
                stderr=log,
                start_new_session=True,
            )
        os.close(writing)
        with open(reading, "rb") as ready:
            ready.read()
        # Its agent: without one a vault ends after a while.
        self._agents.append(vault_socket.connect(self.directory))
        return self

    @property
    def address(self) -> VaultAddress:
        """Where it answers other vaults."""
        port = vault_socket.port(self.directory)
        assert port is not None
        return VaultAddress(node=self.node, host="127.0.0.1", port=port)

    def kill(self) -> None:
        """What a node that is lost takes with it."""
        assert self.process is not None
        group = self.process.pid
        self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        until("its successor has ended", lambda: not members_of(group))

    def signal(self, number: signal.Signals) -> None:
        """Stop it, let it go on, and its successor with it."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End it, if it still runs, as its agent would."""
        self._reserved.close()
        for agent in self._agents:
            agent.close()
        if self.process is None or not members_of(self.process.pid):
            return
        self.signal(signal.SIGCONT)
        with vault_socket.connect(self.directory) as link:
            serves = vault_socket.peer_pid(link)
            frames.send(link, End())
        group = self.process.pid
        ended = self.process.wait(WAIT_S)
        assert serves != group or ended == 0
        until("its successor has ended", lambda: not members_of(group))

    def assign(self, order: BackupOrder, token: str = TOKEN) -> Answer:
        """What the agent hands over."""
        with vault_socket.connect(self.directory) as link:
            frames.send(link, Assign(order=order, token=token))
            return frames.receive(link, messages.answers)[0]

    def serve(self, name: ShardName) -> None:
        """What the agent says when a job is placed on its node: the job of these shards."""
        with vault_socket.connect(self.directory) as link:
            frames.send(link, Serve(job=name.job, submitted_ms=name.submitted_ms, world_size=name.world_size))
            assert frames.receive(link, messages.answers)[0] == Done()

    def follow(self) -> Callable[[], Notice]:
        """What the agent is told from now on, one notice a call."""
        link = vault_socket.connect(self.directory)
        link.settimeout(WAIT_S)
        self._agents.append(link)
        frames.send(link, Follow())
        # It has no answer, and what happens before it is read is not told.
        until("it is followed", lambda: not _unread(link))

        def next_notice() -> Notice:
            answer, _ = frames.receive(link, messages.answers)
            assert isinstance(answer, Notice)
            return answer

        return next_notice

    @contextmanager
    def rank(self, rank: int = 0, *, generation: int = 1, world_size: int = 2) -> Iterator[VaultClient]:
        """A rank of this node."""
        client = VaultClient(self.directory, shard(rank, world_size), generation)
        yield client
        client.close()

    def held(
        self, rank: int = 0, *, world_size: int = 2, token: str = TOKEN, trust: PeerTrust | None = None
    ) -> RankSteps:
        """What it has of a rank, as it tells another vault of the job."""
        asking = Assignment(order_of("tester", world_size=world_size), token, trust or PeerTrust())
        with dial(self.address, asking) as link:
            answer = ask(link, AskHeld(names=(shard(rank, world_size),)))
        assert isinstance(answer, Held)
        return answer.shards[0]

    def flip_a_byte(self, rank: int, offset: int) -> None:
        """Damage the shards that are in its memory of this rank, all of them, behind its back."""
        for entry in self._memory(f"holdfast-job-{rank}"):
            memory = os.open(entry, os.O_RDWR)
            # One that is just being made for a later step has none there yet.
            for byte in os.pread(memory, 1, offset):
                os.pwrite(memory, bytes([byte ^ 4]), offset)
            os.close(memory)

    def taken(self, rank: int) -> int:
        """How many bytes of memory the shards of a rank take in it."""
        return sum(512 * entry.stat().st_blocks for entry in self._memory(f"holdfast-job-{rank}"))

    def segments(self) -> int:
        """How many pieces of memory for shards it has."""
        return len(self._memory("holdfast-"))

    def _memory(self, name: str) -> list[Path]:
        assert self.process is not None
        found: dict[int, Path] = {}
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(entry).startswith(f"/memfd:{name}"):
                    # A mapping has a descriptor of its own.
                    found[entry.stat().st_ino] = entry
        return list(found.values())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., VaultNode]]:
    """Makes nodes: their name, the arguments of their vault, whether it is a patient one, and where it says things."""
    nodes: list[VaultNode] = []

    def make(name: str, *arguments: str, is_patient: bool = False, log: Path | None = None) -> VaultNode:
        nodes.append(VaultNode(tmp_path, name, is_patient=is_patient, log=log))
        return nodes[-1].start(*arguments)

    yield make
    for each in nodes:
        each.end()


def shard(rank: int, world_size: int = 2) -> ShardName:
    """A rank's shards."""
    return ShardName(job="job", submitted_ms=1, world_size=world_size, rank=rank)


def order_of(
    node: str,
    *,
    generation: int = 1,
    node_rank: int = 0,
    nproc_per_node: int = 1,
    world_size: int = 2,
    every: int = 1,
    persist_every: int = 0,
    keeper: VaultAddress | None = None,
    sources: tuple[VaultAddress, ...] = (),
    alike: tuple[int, ...] = (),
    replicas: tuple[Replica, ...] = (),
    job: str = "job",
    submitted_ms: int = 1,
) -> BackupOrder:
    """A backup order as the coordinator writes it."""
    return BackupOrder(
        node=node,
        job=job,
        submitted_ms=submitted_ms,
        world_size=world_size,
        generation=generation,
        node_rank=node_rank,
        nproc_per_node=nproc_per_node,
        every=every,
        persist_every=persist_every,
        keeper=keeper,
        sources=sources,
        alike=(alike,) * nproc_per_node if alike else (),
        replicas=replicas,
    )


def at(step: int, generation: int = 1) -> SealedStep:
    """A step of a generation."""
    return SealedStep(step=step, generation=generation)


def state(step: int, chunks: float = 2.5) -> dict[str, object]:
    """Something to keep, different for every step, of so many chunks."""
    count = int(chunks * CHUNK) // 4
    return {"weights": torch.arange(count, dtype=torch.int32) + step, "step": step}


def is_state(found: dict[str, object], step: int, chunks: float = 2.5) -> bool:
    """Whether it is that, bit for bit."""
    expected, weights = state(step, chunks)["weights"], found["weights"]
    assert isinstance(expected, torch.Tensor) and isinstance(weights, torch.Tensor)
    return found["step"] == step and torch.equal(weights, expected)


def _unread(link: socket.socket) -> int:
    """How many bytes the other end of a local connection has still to read."""
    (count,) = struct.unpack("i", fcntl.ioctl(link, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def members_of(group: int) -> list[int]:
    """Return the living processes of a group."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            if os.getpgid(int(entry)) == group and state not in "ZX":
                found.append(int(entry))
    return found


def until(what: str, condition: Callable[[], T]) -> T:
    """Wait for something that comes about by itself; the first that is true."""
    deadline = time.monotonic() + WAIT_S
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"not in {WAIT_S:g} s: {what}"
        # Looking takes from those who are looked at: at most a quarter of the time.
        time.sleep(max(0.005, 3 * (time.monotonic() - began)))
