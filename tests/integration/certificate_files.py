"""Certificates for tests, as files that servers and settings name."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from holdfast.network.certificates import KeyPair, make_authority, make_certificate
from holdfast.settings.network import NetworkPolicy


class Authority:
    """An authority, and the files of what it vouches for."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.now = datetime.now(UTC)
        self.pair: KeyPair = make_authority("tests", self.now)
        self.file = directory / "ca.pem"
        self.file.write_bytes(self.pair.certificate)

    @property
    def trusting(self) -> NetworkPolicy:
        """Settings of a process that trusts this authority, and has no certificate itself."""
        return NetworkPolicy(tls_ca=str(self.file))

    def certified(self, name: str, hosts: Collection[str], *, days: int = 30) -> NetworkPolicy:
        """Settings of a process with a certificate for `hosts`; `days` below 0: it has ended."""
        pair = make_certificate(self.pair, name, hosts, self.now, days=days)
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        key.chmod(0o600)
        return NetworkPolicy(tls_ca=str(self.file), tls_cert=str(certificate), tls_key=str(key))
