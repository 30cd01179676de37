"""Certificates of a cluster: whom TLS accepts with them."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.network.certificates import (
    CLIENT,
    SERVER,
    KeyPair,
    ends_of,
    make_authority,
    make_certificate,
    needs_renewal,
)
from holdfast.network.tls import TlsFilesRefused, client_context, require_files, server_context
from holdfast.settings.network import NetworkPolicy

NOW = datetime.now(UTC)
AUTHORITY = make_authority("cluster", NOW)
OTHER = make_authority("cluster", NOW)


def written(folder: Path, name: str, pair: KeyPair, authority: KeyPair = AUTHORITY) -> NetworkPolicy:
    files = {"ca": authority.certificate, "cert": pair.certificate, "key": pair.key}
    for kind, content in files.items():
        (folder / f"{name}.{kind}").write_bytes(content)
    at = folder / name
    return NetworkPolicy(tls_ca=f"{at}.ca", tls_cert=f"{at}.cert", tls_key=f"{at}.key")


def shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Run a handshake in memory. Raises ssl.SSLError if one side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                # With TLS 1.3 the client learns only here that its certificate is refused.
                end.read(1)
            except ssl.SSLWantReadError:
                pass


def test_nodes_accept_each_other_by_their_names(tmp_path: Path) -> None:
    one = written(tmp_path, "one", make_certificate(AUTHORITY, "node-0", ["node-0", "10.0.0.1"], NOW))
    two = written(tmp_path, "two", make_certificate(AUTHORITY, "node-1", ["node-1"], NOW))
    for host in ("node-0", "10.0.0.1"):
        shake(client_context(two), server_context(one), host)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (make_certificate(AUTHORITY, "node-1", ["node-1"], NOW), "Hostname mismatch"),
        (make_certificate(OTHER, "node-0", ["node-0"], NOW), "signature failure|self.signed|unable to get"),
        (make_certificate(AUTHORITY, "node-0", ["node-0"], NOW, days=-1), "has expired"),
        (make_certificate(AUTHORITY, "node-0", ["node-0"], NOW, uses=[CLIENT]), "purpose"),
        (make_certificate(AUTHORITY, "node-0", ["node-0"], NOW + timedelta(days=2)), "not yet valid"),
    ],
    ids=["host", "authority", "expired", "purpose", "future"],
)
def test_a_client_refuses_a_server(server: KeyPair, said: str, tmp_path: Path) -> None:
    client = written(tmp_path, "client", make_certificate(AUTHORITY, "node-1", ["node-1"], NOW))
    with pytest.raises(ssl.SSLCertVerificationError, match=said):
        shake(client_context(client), server_context(written(tmp_path, "server", server)), "node-0")


@pytest.mark.parametrize(
    "client",
    [
        make_certificate(OTHER, "node-1", ["node-1"], NOW),
        make_certificate(AUTHORITY, "node-1", ["node-1"], NOW, days=-1),
        make_certificate(AUTHORITY, "node-1", ["node-1"], NOW, uses=[SERVER]),
        None,
    ],
    ids=["authority", "expired", "purpose", "none"],
)
def test_a_server_refuses_a_client(client: KeyPair | None, tmp_path: Path) -> None:
    server = written(tmp_path, "server", make_certificate(AUTHORITY, "node-0", ["node-0"], NOW))
    policy = NetworkPolicy(tls_ca=server.tls_ca) if client is None else written(tmp_path, "client", client)
    with pytest.raises(ssl.SSLError):
        shake(client_context(policy), server_context(server), "node-0")


def test_no_certificate_outlives_its_authority() -> None:
    brief = make_authority("cluster", NOW, days=10)
    assert ends_of(make_certificate(brief, "x", ["x"], NOW).certificate) == ends_of(brief.certificate)


def test_a_certificate_is_renewed_at_half_time_for_other_hosts_and_by_another_authority() -> None:
    hosts = ["node-0", "10.0.0.1"]
    pair = make_certificate(AUTHORITY, "node-0", hosts, NOW)
    assert not needs_renewal(pair, AUTHORITY, hosts, NOW)
    assert needs_renewal(pair, AUTHORITY, hosts, NOW + timedelta(days=400))
    assert needs_renewal(pair, AUTHORITY, ["node-0"], NOW)
    assert needs_renewal(pair, OTHER, hosts, NOW)


def test_files_that_cannot_be_used_are_named_with_cause_and_cure(tmp_path: Path) -> None:
    good = written(tmp_path, "good", make_certificate(AUTHORITY, "x", ["x"], NOW))
    other = written(tmp_path, "other", make_certificate(AUTHORITY, "y", ["y"], NOW))
    require_files(good)
    require_files(NetworkPolicy())
    text = tmp_path / "text"
    text.write_text("no certificate")
    for policy, said in (
        (NetworkPolicy(tls_ca="/nowhere/ca.pem"), r"^/nowhere/ca.pem \(tls_ca\) cannot be read: No such file"),
        (NetworkPolicy(tls_ca=str(text)), "text holds no certificates"),
        (NetworkPolicy(tls_cert=good.tls_cert, tls_key="/nowhere/key"), r"^/nowhere/key \(tls_key\) cannot be read"),
        (NetworkPolicy(tls_cert=good.tls_cert, tls_key=other.tls_key), "other.key is not the key of .*good.cert"),
        (NetworkPolicy(tls_cert=str(text), tls_key=good.tls_key), "text with .*good.key cannot be used"),
    ):
        with pytest.raises(TlsFilesRefused, match=said):
            require_files(policy)
    with pytest.raises(TlsFilesRefused, match="needs tls_ca, tls_cert and tls_key"):
        server_context(NetworkPolicy(tls_ca=good.tls_ca))
