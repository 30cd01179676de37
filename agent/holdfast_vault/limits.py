"""Limits of a vault for its node's memory, network and disk, and its certificates, as command line flags."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from holdfast.settings.network import NetworkPolicy
from holdfast_vault.shelf.wanted_steps import KEPT_MIN


class VaultLimits(NamedTuple):
    """0: as much as there is."""

    memory_bytes: int = 0
    memory_steps: int = KEPT_MIN
    peer_bytes_per_s: float = 0.0
    persist_bytes_per_s: float = 0.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the limits and of TLS to a parser."""
    parser.add_argument("--memory-bytes", type=int, default=0, help="memory for all shards; 0: what the machine has")
    parser.add_argument(
        "--memory-steps",
        type=int,
        default=KEPT_MIN,
        help="kept steps of each rank, if there is memory (default: %(default)s)",
    )
    parser.add_argument("--peer-bytes-per-s", type=float, default=0.0, help="limit of copies to other nodes; 0: none")
    parser.add_argument("--persist-bytes-per-s", type=float, default=0.0, help="limit of writes to the disk; 0: none")
    for name in ("tls-ca", "tls-cert", "tls-key", "tls-refused"):
        parser.add_argument(f"--{name}", default="", help=f"{name.replace('-', '_')} of [network]")
    parser.add_argument("--plain-text", action="store_true", help="copies need no TLS outside loopback")


def limits_of(arguments: argparse.Namespace) -> VaultLimits:
    return VaultLimits(**{name: getattr(arguments, name) for name in VaultLimits._fields})


def network_of(arguments: argparse.Namespace) -> NetworkPolicy:
    names = ("tls_ca", "tls_cert", "tls_key", "tls_refused", "plain_text")
    return NetworkPolicy(**{name: getattr(arguments, name) for name in names})
