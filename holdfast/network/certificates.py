"""Certificates of a cluster: one authority, and a certificate of it for each process. Made in memory, from a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3652
CERTIFICATE_DAYS = 730
_CLOCKS_DIFFER = timedelta(hours=1)
"""A certificate counts from this long before it was made: the clock of another machine may be behind."""

SERVER = "server"
CLIENT = "client"
_USES = {SERVER: ExtendedKeyUsageOID.SERVER_AUTH, CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, now: datetime, days: int = AUTHORITY_DAYS) -> KeyPair:
    """Make a certificate that vouches for others. Its key must stay where certificates are made."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = (
        _draft(subject, subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: KeyPair,
    name: str,
    hosts: Collection[str],
    now: datetime,
    *,
    uses: Collection[str] = (SERVER, CLIENT),
    days: int = CERTIFICATE_DAYS,
) -> KeyPair:
    """Make a certificate of the authority for `hosts` (names or IP addresses); it ends no later than the authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _draft(_named(name), issuer.subject, key.public_key(), now, days, ends_by=issuer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_USES[use] for use in uses]), critical=False)
        .add_extension(_authority_key(issuer), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def needs_renewal(pair: KeyPair, authority: KeyPair, hosts: Collection[str], now: datetime) -> bool:
    """Return True if a certificate is not the authority's, names other hosts, or has lived through half its time."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return True
    halfway = (
        certificate.not_valid_before_utc + (certificate.not_valid_after_utc - certificate.not_valid_before_utc) / 2
    )
    return now >= halfway or set(hosts_of(pair.certificate)) != set(hosts)


def hosts_of(certificate: bytes) -> list[str]:
    """Return the names and IP addresses that a certificate (PEM) is for."""
    try:
        names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names.value]


def made_at(certificate: bytes) -> datetime:
    """Return the time from which a certificate (PEM) counts."""
    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc


def ends_of(certificates: bytes) -> list[datetime]:
    """Return the ends of all certificates of a PEM file. Raises ValueError if it holds none."""
    return [one.not_valid_after_utc for one in x509.load_pem_x509_certificates(certificates)]


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
    *,
    ends_by: datetime | None = None,
) -> x509.CertificateBuilder:
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _CLOCKS_DIFFER)
        .not_valid_after(end if ends_by is None else min(end, ends_by))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority_key(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
