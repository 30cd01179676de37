"""Section `[network]`: TLS between processes and its certificates, keys that sign orders, and the place of a node."""

from __future__ import annotations

from holdfast.ids import checked_name
from holdfast.settings import Section


class NetworkPolicy(Section, frozen=True, kw_only=True):
    """Connections to NATS, to Postgres and between vaults. Those outside loopback need TLS."""

    tls_ca: str = ""
    """File (PEM) of the certificates that vouch for servers and for other nodes; "": none."""

    tls_cert: str = ""
    """File (PEM) of the certificate that this process shows to others, and those above it; "": none."""

    tls_key: str = ""
    """File (PEM, without a passphrase) of the key of `tls_cert`."""

    tls_refused: str = ""
    """File of the nodes whose certificates other nodes refuse: lines of the form `NODE`, or `NODE TIME` for those made
    before. It is read for each connection; "": none."""

    reader_config: str = ""
    """Configuration file with the addresses and TLS files of the reader, which `holdfast connect` passes on; "": the
    addresses of this process, if they are the reader's."""

    plain_text: bool = False
    """Allow connections outside loopback without TLS: who can read the network then reads passwords and orders."""

    rack: str = ""
    """Name of the node's rack: nodes of a rack share power or a switch. Copies of checkpoints go to another rack."""

    order_key: str = ""
    """Private key by which this service (controller, analyzer or ckpt) signs its orders; in its own file, named by
    HOLDFAST_NETWORK_ORDER_KEY_FILE. `holdfast credentials keys` makes it."""

    order_keys: str = ""
    """Public keys by which agents recognize orders, as `controller:KEY analyzer:KEY ckpt:KEY`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rack:
            checked_name(self.rack, "rack")
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ValueError(f"{given} is set and {missing} is not: a certificate and its key belong together")


NO_FILES = NetworkPolicy()
"""The policy of a process without settings: TLS outside loopback, by the authorities of the system."""
