"""Which addresses a vault talks to."""

from __future__ import annotations

import pytest

from holdfast.settings.network import NetworkPolicy
from holdfast_vault.peers.trust import PeerTrust

OUTSIDE = ("10.0.0.1", "0.0.0.0", "fe80::1%eth0", "::ffff:10.0.0.1")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_no_certificates(address: str) -> None:
    assert PeerTrust().why_not(address) == ""


@pytest.mark.parametrize("address", OUTSIDE)
def test_outside_loopback_certificates_are_needed_unless_a_setting_says_otherwise(address: str) -> None:
    assert address in PeerTrust().why_not(address)
    # An authority alone is for servers of the bus and the database.
    assert PeerTrust(NetworkPolicy(tls_ca="ca")).why_not(address)
    for network in (
        NetworkPolicy(plain_text=True),
        NetworkPolicy(tls_ca="ca", tls_cert="cert", tls_key="key"),
    ):
        assert PeerTrust(network).why_not(address) == ""
