"""Vaults without agents, as the benchmarks of checkpoints need them: each a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.network.certificates import make_authority, make_certificate
from holdfast.node import frames
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import Assign, BackedUp, Done, Fetched, Follow, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast.settings.network import NetworkPolicy
from holdfast.trainer.vault_client.client import VaultClient

SHARD = ShardName(job="bench", submitted_ms=0, world_size=2, rank=0)
WAIT_S = 60.0


class Vault:
    """A vault of the node `name`, and what its agent would do for it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory

    def rank(self, generation: int = 1) -> VaultClient:
        """This process as rank 0 of the job."""
        return VaultClient(self.directory, SHARD, generation)

    @property
    def address(self) -> VaultAddress:
        """Address for other vaults."""
        port = vault_socket.port(self.directory)
        assert port is not None
        return VaultAddress(node=self.name, host="127.0.0.1", port=port)

    def assign(
        self,
        generation: int,
        node_rank: int,
        *,
        keeper: VaultAddress | None = None,
        sources: tuple[VaultAddress, ...] = (),
    ) -> None:
        """Hand over a backup order, as the coordinator would have written it."""
        order = BackupOrder(
            node=self.name,
            job=SHARD.job,
            submitted_ms=SHARD.submitted_ms,
            world_size=SHARD.world_size,
            generation=generation,
            node_rank=node_rank,
            nproc_per_node=1,
            keeper=keeper,
            sources=sources,
        )
        with vault_socket.connect(self.directory) as link:
            frames.send(link, Assign(order=order, token="bench"))
            assert frames.receive(link, messages.answers)[0] == Done()

    @contextmanager
    def notices(self) -> Iterator[Iterator[BackedUp | Fetched]]:
        """Yield the changes of shards from now on."""
        with vault_socket.connect(self.directory) as link:
            link.settimeout(WAIT_S)
            frames.send(link, Follow())
            yield _notices(link)


def _notices(link: socket.socket) -> Iterator[BackedUp | Fetched]:
    while True:
        answer, _ = frames.receive(link, messages.answers)
        if isinstance(answer, BackedUp | Fetched):
            yield answer


@contextmanager
def vault(directory: Path, name: str = "node", network: NetworkPolicy | None = None) -> Iterator[Vault]:
    """One that runs as long as the block does. With certificates in `network` it speaks TLS with others."""
    place = directory / name
    place.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    command = (sys.executable, "-m", "holdfast_vault", "--state-dir", str(place), "--ready-fd", str(writing))
    settings = msgspec.structs.asdict(network) if network is not None else {}
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items() if key.startswith("tls_")]
    process = subprocess.Popen((*command, *flags), pass_fds=[writing])
    os.close(writing)
    with open(reading, "rb") as ready:
        ready.read()
    try:
        yield Vault(name, place)
    finally:
        process.terminate()
        process.wait()


class Certificates:
    """Certificates of nodes, of an authority that is made for this run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = make_authority("bench", datetime.now(UTC))

    def of(self, node: str) -> NetworkPolicy:
        """Settings of a node with a certificate."""
        pair = make_certificate(self._authority, node, [node], datetime.now(UTC))
        contents = {"ca": self._authority.certificate, "pem": pair.certificate, "key": pair.key}
        for kind, content in contents.items():
            (self._directory / f"{node}.{kind}").write_bytes(content)
        ca, certificate, key = (str(self._directory / f"{node}.{kind}") for kind in contents)
        return NetworkPolicy(tls_ca=ca, tls_cert=certificate, tls_key=key)
