"""Real servers: `embedded_postgres` and `embedded_nats` of the session, `postgres` and `nats` of a module.

Those of the session are shared: a test makes a database, a stream or a bucket of its own name.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.bus.accounts import OPERATOR, users
from holdfast.bus.nats import NatsBus, connect
from holdfast.embedded.layout import Ports
from holdfast.embedded.processes.child_process import start
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import admin_url, ensure_database, initialise, postgres_spec, programs
from holdfast.store import Store
from holdfast.store.upgrade.migrate import migrate
from tests.integration.bus_worlds import WITHIN_S
from tests.integration.servers import NatsServer, PostgresServer
from tests.integration.store_worlds import PASSWORDS, PostgresWorld
from tests.nursery import environment_at_start, nursery

__all__ = ["environment_at_start", "nursery"]

PASSWORD = "for-tests-only"
BUS = dict.fromkeys(users(()), PASSWORD)


@pytest.fixture(scope="session")
def embedded_ports() -> Iterator[Ports]:
    with reserve_ports({}, None) as ports:
        yield ports


@pytest.fixture(scope="session")
def embedded_postgres(tmp_path_factory: pytest.TempPathFactory, embedded_ports: Ports) -> Iterator[str]:
    """The URL of an empty database `holdfast` as its superuser. Nothing in it survives a crash: it never syncs."""
    directory = tmp_path_factory.mktemp("postgres")
    port = embedded_ports.postgres
    identity = choose_identity(programs() / "postgres", directory)
    log = directory / "postgres.log"
    asyncio.run(initialise(directory, password=PASSWORD, identity=identity, log=log, durable=False))
    spec = postgres_spec(directory, port=port, password=PASSWORD, identity=identity, durable=False)
    with running(spec, log):
        asyncio.run(ensure_database(port, PASSWORD))
        yield admin_url(port, PASSWORD)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 MB: an agent needs 256 MiB."""
    place = tmp_path / "state"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "none", place], check=False).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server of the module's own, which a test may kill, with the tables of all services."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    asyncio.run(server.start())
    migrate(server.url, PASSWORDS)
    yield server
    server.stop()


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[Store]:
    world = PostgresWorld(postgres)
    await world.enter()
    yield await world.store()
    await world.leave()


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server of the module's own, which a test may kill."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await connect(nats.url, "test", timeout_s=WITHIN_S)
    yield bus
    await bus.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server of the module's own, with the users of two nodes."""
    with nats_server(tmp_path_factory.mktemp("nats"), "n1", "n2") as server:
        yield server


@pytest.fixture
async def operator(guarded: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await connect(guarded.url, "operator", timeout_s=WITHIN_S)
    yield bus
    await bus.close()


@pytest.fixture
async def node(guarded: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await connect(guarded.url_of("agent-n1"), "agent-n1", makes_streams=False, timeout_s=WITHIN_S)
    yield bus
    await bus.close()


@pytest.fixture(scope="session")
def embedded_nats(tmp_path_factory: pytest.TempPathFactory, embedded_ports: Ports) -> Iterator[str]:
    """The URL of a nats-server with JetStream, credentials included."""
    directory = tmp_path_factory.mktemp("nats")
    port = embedded_ports.nats
    spec = nats_spec(directory, port=port, monitor_port=embedded_ports.nats_monitor, passwords=BUS)
    with running(spec, directory / "nats.log"):
        yield f"nats://{OPERATOR}:{PASSWORD}@{HOST}:{port}"


@pytest.fixture(scope="session")
def node_place(tmp_path_factory: pytest.TempPathFactory, nursery: Path) -> Iterator[Path]:
    """Where the tests' nodes have their state, one after the other; the zygote there is warm from the second on."""
    place = tmp_path_factory.mktemp("node") / "state"
    yield place
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        zygote = int((place / "zygote.pid").read_text())
        # One that was killed has left its number behind, which may be anybody's by now.
        if str(place).encode() in Path(f"/proc/{zygote}/cmdline").read_bytes().split(b"\0"):
            os.kill(zygote, signal.SIGKILL)


@contextlib.contextmanager
def nats_server(directory: Path, *nodes: str) -> Iterator[NatsServer]:
    server = NatsServer(directory)
    server.nodes = nodes
    asyncio.run(server.start())
    yield server
    server.stop()


@contextlib.contextmanager
def running(spec: ChildSpec, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A server of the embedded cluster without its supervisor, ready on entry and gone on exit."""
    assert spec.probe is not None
    with open(log, "ab") as output:
        process = start(spec.argv, spec.environment, spec.directory, output.fileno(), signal.SIGKILL, spec.identity)
    try:
        asyncio.run(_ready(spec, process, log))
        yield process
    finally:
        process.send_signal(spec.stop_signal)
        try:
            process.wait(timeout=spec.stop_grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _ready(spec: ChildSpec, process: "subprocess.Popen[bytes]", log: Path) -> None:
    assert spec.probe is not None
    try:
        async with asyncio.timeout(30):
            await spec.probe()
    except TimeoutError:
        pytest.fail(f"{spec.name} is not ready after 30 s (exit code {process.poll()}):\n{log.read_text()}")


BUCKETS = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """One of a server on this machine that speaks S3, the condition for creating objects included."""
    # Seconds of imports that most tests need not wait for.
    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with pytest.MonkeyPatch.context() as patched:
            for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
                patched.delenv(name, raising=False)
            patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patched.setenv("AWS_ACCESS_KEY_ID", "for-tests")
            patched.setenv("AWS_SECRET_ACCESS_KEY", "for-tests")
            patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
            # What one server of this process has been given, the next one has too.
            name = f"s3://checkpoints-{next(BUCKETS)}"
            fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
            yield name
            fsspec.get_filesystem_class("s3").clear_instance_cache()
    finally:
        server.stop()
