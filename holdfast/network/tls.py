"""TLS contexts from the settings' files. Each call reads the files, so that renewed certificates are found."""

from __future__ import annotations

import ssl

from holdfast.settings.network import NetworkPolicy


class TlsFilesRefused(ValueError):
    """A file of certificates or keys cannot be used; the message names it, the cause and the cure."""


def client_context(network: NetworkPolicy) -> ssl.SSLContext:
    """Return a context that verifies the server and its host name, and shows this process's certificate if it has one.

    Without `tls_ca` the system's authorities vouch for servers (and SSL_CERT_FILE's). Raises TlsFilesRefused.
    """
    context = ssl.create_default_context() if not network.tls_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if network.tls_ca:
        _load_authorities(context, network.tls_ca)
    if network.tls_cert:
        _load_own(context, network)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def server_context(network: NetworkPolicy) -> ssl.SSLContext:
    """Return a context that shows this process's certificate, and refuses clients without one of `tls_ca`.

    Raises TlsFilesRefused, also if one of the files is not named.
    """
    if not (network.tls_ca and network.tls_cert):
        raise TlsFilesRefused("a server of TLS needs tls_ca, tls_cert and tls_key: set them in [network]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_authorities(context, network.tls_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_own(context, network)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def require_files(network: NetworkPolicy) -> None:
    """Raise TlsFilesRefused if a file of the settings cannot be used."""
    if network.tls_ca or network.tls_cert:
        client_context(network)


def why_refused(error: ssl.SSLCertVerificationError) -> str:
    """Describe a certificate that was refused, with the cure."""
    return (
        f"its certificate fails verification ({error.verify_message}): tls_ca must name its authority, and the "
        "certificate the host of the address"
    )


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsFilesRefused(
            f"{path} holds no certificates: {error.reason or error}. tls_ca names a file of certificates in PEM"
        ) from error
    except OSError as error:
        raise TlsFilesRefused(f"{path} (tls_ca) cannot be read: {error.strerror}. {_CURE}") from error


def _load_own(context: ssl.SSLContext, network: NetworkPolicy) -> None:
    for key, path in (("tls_cert", network.tls_cert), ("tls_key", network.tls_key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise TlsFilesRefused(f"{path} ({key}) cannot be read: {error.strerror}. {_CURE}") from error
    try:
        # Without a function OpenSSL asks for a passphrase at the terminal.
        context.load_cert_chain(network.tls_cert, network.tls_key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFilesRefused(
                f"{network.tls_key} is not the key of {network.tls_cert}: tls_cert and tls_key belong together"
            ) from error
        raise TlsFilesRefused(
            f"{network.tls_cert} with {network.tls_key} cannot be used: {error.reason or error}. "
            "tls_cert and tls_key name a certificate and its key in PEM, the key without a passphrase"
        ) from error


_CURE = "Name a file that this process's user can read"


def _no_passphrase() -> str:
    return ""
