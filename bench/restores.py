"""Speed of copying and sealing a state, and of restoring it from this node's memory and from another's."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import median
from vaults import Certificates, Vault, vault

from holdfast.node.vault.messages import BackedUp
from holdfast.settings.network import NetworkPolicy

Network = Callable[[str], NetworkPolicy | None]
"""The settings of a node by its name."""

RESTART_S = 0.067
"""From kill -9 of a rank to the first step of the next generation, with two ranks: bench/restart.py."""
CHUNK_BYTES = 4 << 20
RUNS = 5
FIGURES = (
    *("memcpy_gb_s", "copied_and_sealed_gb_s", "share_of_memcpy"),
    *("torch_load_ms", "checked_and_restored_ms", "restored_ms"),
    *("torch_load_over_checked_and_restored", "torch_load_over_restored"),
    *("loopback_gb_s", "sent_gb_s", "sent_share_of_loopback", "sent_with_tls_gb_s"),
    *("from_peer_ms", "from_peer_gb_s", "from_peer_share_of_loopback", "from_peer_with_tls_gb_s"),
)


def timed(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the median seconds of some runs."""
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        kept = work()
        took.append(time.perf_counter() - began)
        del kept
    return median(took) or 0.0


def memcpy_gb_s(nbytes: int) -> float:
    """Warm memory to warm memory, one thread."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return nbytes / timed(lambda: np.copyto(target, source), 7) / 1e9


def loopback_gb_s(nbytes: int) -> float:
    """sendfile of warm memory to warm memory over one connection to this machine itself."""
    descriptor = os.memfd_create("bench")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as sending:
        sending.connect(listening.getsockname())
        receiving, _ = listening.accept()
        os.write(descriptor, bytes(CHUNK_BYTES))
        os.ftruncate(descriptor, nbytes)
        os.posix_fallocate(descriptor, 0, nbytes)
        target = np.ones(nbytes, np.uint8)

        def send() -> None:
            at = 0
            while at < nbytes:
                at += os.sendfile(sending.fileno(), descriptor, at, min(CHUNK_BYTES, nbytes - at))

        def once() -> None:
            thread = threading.Thread(target=send)
            thread.start()
            for at in range(0, nbytes, CHUNK_BYTES):
                view = target[at : at + CHUNK_BYTES]
                receiving.recv_into(view, 0, socket.MSG_WAITALL)
            thread.join()

        took = timed(once)
        receiving.close()
    os.close(descriptor)
    return nbytes / took / 1e9


def local(state: dict[str, Any], nbytes: int, root: Path) -> dict[str, float]:
    """The engine's rate when nothing else runs, and the state back from this node's memory, beside torch.load."""
    with vault(root, "local") as node:
        client = node.rank()
        for step in range(4):
            client.save(step, state)
            client.steps()

        def save_and_seal() -> None:
            client.save(10, state)
            client.steps()

        sealed_s = timed(save_and_seal, 2 * RUNS)
        at_once_s = timed(lambda: client.restore(client.steps()[0]))
        client.close()
        restored_s = median([_after_a_restart(node) for _ in range(RUNS)]) or 0.0
    path = root / "torch.pt"
    torch.save(state, path)
    loaded_s = timed(lambda: torch.load(path, weights_only=True))
    path.unlink()
    memcpy = memcpy_gb_s(min(nbytes, 1_000_000_000))
    return {
        "memcpy_gb_s": memcpy,
        "copied_and_sealed_gb_s": nbytes / sealed_s / 1e9,
        "share_of_memcpy": nbytes / sealed_s / 1e9 / memcpy,
        "torch_load_ms": 1000 * loaded_s,
        "checked_and_restored_ms": 1000 * at_once_s,
        "restored_ms": 1000 * restored_s,
        "torch_load_over_checked_and_restored": loaded_s / at_once_s,
        "torch_load_over_restored": loaded_s / restored_s,
    }


def _after_a_restart(node: Vault) -> float:
    """The rank's connection has ended; its successor comes as late as a restart takes."""
    time.sleep(RESTART_S)
    client = node.rank(generation=2)
    began = time.perf_counter()
    client.restore(client.steps()[0])
    took = time.perf_counter() - began
    client.close()
    return took


def from_a_peer(state: dict[str, Any], nbytes: int, root: Path) -> dict[str, float]:
    """Measure a copy to another node's vault, and the restore from there on a node that has nothing: in plain text, and
    with TLS.
    """
    certificates = Certificates(root)
    sent_s, back_s = _to_a_peer_and_back(state, root, lambda node: None)
    sent_tls_s, back_tls_s = _to_a_peer_and_back(state, root, certificates.of)
    loopback = loopback_gb_s(nbytes)
    return {
        "loopback_gb_s": loopback,
        "sent_gb_s": nbytes / sent_s / 1e9,
        "sent_with_tls_gb_s": nbytes / sent_tls_s / 1e9,
        "from_peer_gb_s": nbytes / back_s / 1e9,
        "from_peer_ms": 1000 * back_s,
        "from_peer_with_tls_gb_s": nbytes / back_tls_s / 1e9,
        "sent_share_of_loopback": nbytes / sent_s / 1e9 / loopback,
        "from_peer_share_of_loopback": nbytes / back_s / 1e9 / loopback,
    }


def _to_a_peer_and_back(state: dict[str, Any], root: Path, network: Network) -> tuple[float, float]:
    with vault(root, "keeper", network("keeper")) as keeper:
        keeper.assign(1, 1)
        with vault(root, "owner", network("owner")) as owner, owner.notices() as notices:
            owner.assign(1, 0, keeper=keeper.address)
            client = owner.rank()
            sent: list[float] = []
            for step in range(3 + RUNS):
                client.save(step, state)
                copy = next(notices)
                assert isinstance(copy, BackedUp)
                sent.append(copy.took_s)
            client.close()
        keeper.assign(2, 1)
        back = [_on_a_new_node(keeper, root, number, network) for number in range(RUNS)]
    # The keeper's first segments are made while it receives them.
    return median(sent[3:]) or 0.0, median(back) or 0.0


def _on_a_new_node(keeper: Vault, root: Path, number: int, network: Network) -> float:
    name = f"new{number}"
    with vault(root, name, network(name)) as new:
        new.assign(2, 0, sources=(keeper.address,))
        client = new.rank(generation=2)
        began = time.perf_counter()
        client.restore(client.steps()[0])
        took = time.perf_counter() - began
        client.close()
    return took
