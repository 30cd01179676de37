"""What docker-compose.yml starts, started here without containers: the same commands, environment, secrets and probes.

Only paths, host names and ports are replaced by those of this machine. What this cannot show is the image and the
engine (docs/compose.md says what has run on one); it does show that external addresses, `_FILE` secrets, the migration,
the health checks and a job work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import yaml
from servers import PASSWORD, PostgresServer, Server, free_port
from tls_postgres import TlsPostgresServer, programs_with_tls

from holdfast.bus import BusError
from holdfast.bus.link import Link
from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.embedded.servers.nats import nats_server
from holdfast.settings.network import NetworkPolicy
from tests.nursery import public_environment, worker_nursery
from tests.warm_python import WarmHoldfast, run_warm

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
DEADLINE_S = 120.0
SERVICES = ("controller", "analyzer", "standby", "ckpt-coordinator", "historian")
AGENTS = ("agent-0", "agent-1", "agent-2")
GPU_AGENT = "agent-gpu"
"""Started by a profile of its own, on machines with GPUs."""
ON_ANOTHER_MACHINE = "c"
"""A node whose agent runs on a machine of its own, with what `secrets` makes for it: here, in the place of agent-2."""
ELSEWHERE = ("--head=localhost", f"--machines={ON_ANOTHER_MACHINE}=127.0.0.9")
TLS_FILES = {"ca": "ca.pem", "cert": "tls.pem", "key": "tls.key"}


class Machine:
    """This machine in the place of the containers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.secrets = root / "secrets"
        self.reader = self.secrets / "reader"
        self.postgres = self._postgres()
        bus = f"127.0.0.1:{free_port()}"
        self.places = {"postgres:5432": f"127.0.0.1:{self.postgres.port}", "nats:4222": bus}
        # As published.
        self.places |= {"localhost:15432": self.places["postgres:5432"], "localhost:14222": bus}
        if isinstance(self.postgres, PostgresServer):
            authority = quote(str(self.reader / "ca.pem"))
            self.places |= {f"?sslmode=verify-full&sslrootcert={authority}": "", "?sslmode=verify-full": ""}
        self.logs = root / "logs"
        self.logs.mkdir(parents=True)

    def _postgres(self) -> Server:
        """A Postgres with TLS where one is installed, else that of the wheel, which has none."""
        if programs_with_tls() is None:
            return PostgresServer(self.root / "postgres")
        own = self.secrets / "postgres"
        files = NetworkPolicy(tls_cert=str(own / "tls.pem"), tls_key=str(own / "tls.key"))
        return TlsPostgresServer(self.root / "postgres", files)

    def make_secrets(self, *flags: str) -> None:
        """What the one-shot service `secrets` does."""
        making = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in COMPOSE["secrets"]["entrypoint"][3:]]
        making.append(f"--reader-at={self.reader}")
        for folder in ("kept", "reader", "machines"):
            (self.secrets / folder).mkdir(parents=True, exist_ok=True)
        (self.secrets / "kept" / "postgres").write_text(PASSWORD)
        subprocess.run([sys.executable, ROOT / "deploy" / "make_secrets.py", self.secrets, *making, *flags], check=True)
        addresses = (*self.secrets.glob("*/*.url"), *self.secrets.glob("machines/*/*.url"))
        for file in (*addresses, *self.reader.glob("holdfast.toml"), *self.reader.glob("*.env")):
            file.write_text(self.here(file.read_text(), ""))

    def own_secrets(self, service: str) -> Path:
        """The folder that a container sees as /run/holdfast: where `secrets` has the volume that is mounted there."""
        volume = _volume_at(service, "/run/holdfast:ro")
        (place,) = [place for name, place in map(_parts, COMPOSE["secrets"]["volumes"]) if name == volume]
        return self.secrets / Path(place).name

    def here(self, text: str, service: str) -> str:
        """A path or address of a container, as it is on this machine."""
        for away, local in self.places.items():
            text = text.replace(away, local)
        if service:
            text = text.replace("/run/holdfast", str(self.own_secrets(service)))
        text = text.replace("/run/reader", str(self.reader))
        for folder in ("/var/lib/holdfast", "/workspace", "/nodes"):
            text = re.sub(rf"(?<![\w./-]){folder}\b", f"{self.root}{folder}", text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """What the compose file sets for a service, and nothing of Holdfast's that happens to be set here."""
        given = {name: self.here(str(value), service) for name, value in COMPOSE[service]["environment"].items()}
        path = {} if service in AGENTS else {"PATH": f"{BIN}:{os.environ['PATH']}"}
        return _clean_environment() | path | given

    @contextlib.contextmanager
    def running(
        self, name: str, argv: list[str], environment: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process that lives as long as the block."""
        with (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, cwd=self.root)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()

    def command(self, service: str) -> list[str]:
        """A service's command behind the image's entry point, `python -m`."""
        own = f"{self.root}/var/lib/holdfast/{service}"
        words = [self.here(word, service) for word in COMPOSE[service]["command"]]
        words = [own if word == f"{self.root}/var/lib/holdfast" else word for word in words]
        # Containers resolve each other's names; here everybody is the loopback.
        return [sys.executable, "-m", *("127.0.0.1" if word in AGENTS else word for word in words)]

    def agent_elsewhere(self) -> tuple[list[str], dict[str, str]]:
        """Return command and environment that deploy/holdfast-agent.service has on a machine of its own."""
        folder = self.secrets / "machines" / ON_ANOTHER_MACHINE
        unit = (ROOT / "deploy" / "holdfast-agent.service").read_text()
        (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        lines = (folder / "holdfast.env").read_text().replace("/etc/holdfast", str(folder)).splitlines()
        own = dict(line.split("=", 1) for line in lines)
        for away, here in {
            "/opt/holdfast/bin/python": sys.executable,
            "/var/lib/holdfast": str(self.root / "var/lib/holdfast" / ON_ANOTHER_MACHINE),
            **{f"${{{name}}}": value for name, value in own.items()},
        }.items():
            command = command.replace(away, here)
        return command.split(), _clean_environment() | own

    def is_let_in(self, url: str, folder: Path | None = None) -> bool:
        """Return whether the bus takes this address with its password, and the certificate of this folder."""
        own = folder or self.own_secrets("operator")
        files = {f"tls_{kind}": str(own / name) for kind, name in TLS_FILES.items()}

        async def tried() -> bool:
            try:
                await (await Link.open(url, "test", NetworkPolicy(**files))).close()
            except BusError:
                return False
            return True

        return asyncio.run(tried())

    def is_healthy(self, service: str) -> bool:
        """What a container's first health check says, which waits for its process."""
        program, *words = COMPOSE[service]["healthcheck"]["test"][1:]
        assert (program, words[0]) == ("sh", "/opt/holdfast/health.sh")
        memory = self.root / "shm" / service
        shutil.rmtree(memory, ignore_errors=True)
        memory.mkdir(parents=True)
        check = self.root / "health.sh"
        check.write_text((ROOT / "deploy" / "health.sh").read_text().replace("/dev/shm", str(memory)))
        environment = self.environment(service) | {"PATH": f"{BIN}:{os.environ['PATH']}"}
        said = subprocess.run([program, check, *words[1:]], env=environment, capture_output=True, check=False)
        return said.returncode == 0

    def run(self, words: Sequence[str | Path], service: str) -> subprocess.CompletedProcess[str]:
        """Run `holdfast` as in a service's container; forked, for there are dozens of these commands."""
        program, *arguments = words
        assert program == "holdfast"
        return run_warm(
            [sys.executable, BIN / program, *arguments],
            cwd=self.root / "workspace",
            env=self.environment(service),
            timeout=DEADLINE_S,
            check=False,
            start=WarmHoldfast,
        )


def _clean_environment() -> dict[str, str]:
    """Return what is set here but for Holdfast; agents have their zygotes from the nursery of all tests."""
    clean = {name: value for name, value in public_environment().items() if not name.startswith("HOLDFAST_")}
    return clean | {NURSERY_VARIABLE: str(worker_nursery())}


def _parts(mount: str) -> tuple[str, str]:
    name, _, place = mount.partition(":")
    return name, place


def _volume_at(service: str, place: str) -> str:
    (name,) = [name for name, at in map(_parts, COMPOSE[service]["volumes"]) if at == place]
    return name


def wait_for(condition: Callable[[], Any], what: str, machine: Machine) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, (
            what + "\n" + "\n".join(log.read_text()[-800:] for log in machine.logs.iterdir())
        )
        # A look takes from those that start.
        time.sleep(0.5)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
async def started(machine: Machine) -> AsyncIterator[Machine]:
    """A machine with secrets, and Postgres as they have it."""
    machine.make_secrets(*ELSEWHERE)
    await machine.postgres.start()
    if isinstance(machine.postgres, TlsPostgresServer):
        connection = await asyncpg.connect(machine.postgres.url().replace("verify-full", "require"))
        await connection.execute("create database holdfast")
        (script,) = [_parts(it)[0] for it in COMPOSE["postgres"]["volumes"] if "/docker-entrypoint-initdb.d/" in it]
        await connection.execute((ROOT / script).read_text())
        await connection.close()
    yield machine
    machine.postgres.stop()


def test_each_container_sees_its_own_secrets_and_no_others(machine: Machine) -> None:
    machine.make_secrets()
    before = {file: file.read_text() for file in machine.secrets.rglob("*") if file.is_file()}
    machine.make_secrets()
    assert before == {file: file.read_text() for file in before}, "a second start finds the same passwords"

    passwords = {file.name: file.read_text() for file in (machine.secrets / "kept" / "roles").iterdir()}
    roles = dict(zip(SERVICES, ("controller", "analyzer", "standby", "ckpt", "historian"), strict=True))
    bus = {file.name: file.read_text() for file in (machine.secrets / "kept" / "bus").iterdir()}
    users = {**roles, "operator": "operator", **{agent: agent.replace("-", "-node-") for agent in AGENTS}}
    users[GPU_AGENT] = "agent-gpu-0"
    assert set(bus) == {*users.values(), "reader"}
    for service, user in users.items():
        url = (machine.own_secrets(service) / "nats.url").read_text()
        assert url.startswith(f"tls://{user}:{bus[user]}@")
        assert not any(password in url for other, password in bus.items() if other != user)
    certificate = {"ca.pem", "tls.pem", "tls.key"}
    for service in (*AGENTS, GPU_AGENT):
        assert {file.name for file in machine.own_secrets(service).iterdir()} == {
            "nats.url",
            "refused",
            "orders.pub",
            *certificate,
        }
    for service, role in {**roles, "operator": "reader"}.items():
        folder = machine.own_secrets(service)
        assert {file.name for file in folder.iterdir()} >= {"nats.url", "database.url"}
        url = (folder / "database.url").read_text()
        assert url.startswith(f"postgresql://holdfast_{role}:{passwords[role]}@")
        assert not any(password in url for other, password in passwords.items() if other != role)
    assert {file.name for file in machine.own_secrets("postgres").iterdir()} == {"password", *certificate}
    assert {file.name for file in machine.own_secrets("nats").iterdir()} == {"nats.conf", *certificate}
    assert {file.name for file in machine.own_secrets("migrate").iterdir()} == {"admin.url", "roles", "ca.pem"}
    signing = {file.name: file.read_text() for file in (machine.secrets / "kept" / "orders").iterdir()}
    for service, role in roles.items():
        key = machine.own_secrets(service) / "order.key"
        assert (key.read_text() if key.exists() else None) == signing.get(role)
    keys = [file for file in machine.secrets.rglob("*.key") if "kept" not in file.parts]
    assert len({file.read_bytes() for file in keys}) == len(keys), "no two containers share a key"
    assert len(keys) == len(users) + len(("reader", "nats", "postgres")) + len(signing)
    assert {file.stat().st_mode & 0o777 for file in machine.secrets.rglob("*.key")} == {0o600}
    of_reader = {file.name: file for file in machine.reader.iterdir()}
    assert set(of_reader) == {"holdfast.toml", "reader.env", *certificate}
    assert {of_reader[name].stat().st_mode & 0o777 for name in ("holdfast.toml", "reader.env", "tls.key")} == {0o600}
    for name in ("holdfast.toml", "reader.env"):
        text = of_reader[name].read_text()
        found = {user for user, password in (*bus.items(), *passwords.items()) if password in text}
        assert found == {"reader"} and bus["reader"] in text and passwords["reader"] in text
    mounted = [_parts(mount)[0] for name, one in COMPOSE.items() if name != "secrets" for mount in one["volumes"]]
    assert "secrets" not in mounted

    certificates = {folder: folder.read_bytes() for folder in machine.secrets.glob("*/tls.pem")}
    machine.make_secrets("--renew", "node-1", "historian")
    for kind, known in {"roles": passwords, "bus": bus}.items():
        now = {file.name: file.read_text() for file in (machine.secrets / "kept" / kind).iterdir()}
        assert {name for name in known if known[name] != now[name]} == {"historian", "agent-node-1"} & set(known)
    renewed = {file.parent.name for file, content in certificates.items() if file.read_bytes() != content}
    assert renewed == {"historian", "agent-node-1"}
    with pytest.raises(subprocess.CalledProcessError):
        machine.make_secrets("--renew", "node-9")
    machine.make_secrets("--renew")
    for kind, known in {"roles": passwords, "bus": bus, "orders": signing}.items():
        assert not set(known.values()) & {file.read_text() for file in (machine.secrets / "kept" / kind).iterdir()}


def test_the_image_is_built_once_and_never_pulled() -> None:
    own = {name: one for name, one in COMPOSE.items() if one["image"] == "holdfast:latest"}
    assert set(own) == {"secrets", "migrate", "operator", "train", *SERVICES, *AGENTS}
    assert [name for name, one in own.items() if "build" in one] == ["secrets"], "eight builds would make eight images"
    assert COMPOSE[GPU_AGENT]["image"] == "holdfast:cuda" and COMPOSE[GPU_AGENT]["build"]["args"]["TORCH_INDEX"]
    assert {one["pull_policy"] for one in (*own.values(), COMPOSE[GPU_AGENT])} == {"never"}


def test_agents_for_the_cpu_are_the_default_and_ports_are_on_loopback() -> None:
    assert "COMPOSE_PROFILES=cpu" in (ROOT / ".env").read_text().splitlines()
    profiles = {name: one["profiles"] for name, one in COMPOSE.items() if "profiles" in one}
    assert profiles == {**{agent: ["cpu"] for agent in AGENTS}, GPU_AGENT: ["gpu"], "train": ["train"]}
    ports = {name: one["ports"] for name, one in COMPOSE.items() if "ports" in one}
    assert set(ports) == {"nats", "postgres"}
    assert all(port.startswith("${HEAD:-127.0.0.1}:") for published in ports.values() for port in published)


@pytest.mark.timeout(420)
def test_a_job_runs_on_what_the_compose_file_starts(started: Machine) -> None:
    machine = started
    shutil.copytree(ROOT / "deploy", machine.root / "etc" / "holdfast")
    configuration = machine.root / "etc" / "holdfast" / "nats.conf"
    port = machine.places["nats:4222"].rpartition(":")[2]
    text = (
        configuration.read_text()
        .replace("port: 4222", f"port: {port}")
        .replace("127.0.0.1:8222", f"127.0.0.1:{free_port()}")
    )
    text = text.replace("../../run/holdfast", os.path.relpath(machine.own_secrets("nats"), configuration.parent))
    text = text.replace("/run/holdfast", str(machine.own_secrets("nats")))
    configuration.write_text(text.replace("/data", str(machine.root / "nats")))

    migrate = machine.here(COMPOSE["migrate"]["entrypoint"][-1].replace("$$", "$"), "migrate")
    subprocess.run(["sh", "-c", migrate], check=True, env=machine.environment("migrate"))

    with contextlib.ExitStack() as stack:
        bus = stack.enter_context(machine.running("nats", [str(nats_server()), "-c", str(configuration)]))
        processes = {
            service: stack.enter_context(
                machine.running(service, machine.command(service), machine.environment(service))
            )
            for service in (*SERVICES, *AGENTS[:2])
        }
        processes["elsewhere"] = stack.enter_context(machine.running("elsewhere", *machine.agent_elsewhere()))
        workspace = machine.root / "workspace"
        shutil.copytree(ROOT / "examples" / "gpt", workspace / "gpt")
        for service in (*SERVICES, *AGENTS[:2]):
            wait_for(lambda service=service: machine.is_healthy(service), f"{service} is not healthy", machine)
        job = ["run", "--nnodes", "3", "--mesh", "dp=3", workspace / "gpt" / "train.py"]
        for agent in (*AGENTS[:2], ON_ANOTHER_MACHINE):
            logs = machine.root / "nodes" / agent.replace("agent", "node")
            logs.mkdir(parents=True)
            (logs / "logs").symlink_to(machine.root / "var" / "lib" / "holdfast" / agent / "logs")

        def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            return machine.run(("holdfast", *arguments), "operator")

        done = command(*job, "--steps", "20", "--layers", "2", "--width", "64", "--heads", "2", "--tokens", "32")
        assert done.returncode == 0, done.stderr
        assert "final_loss=" in done.stdout
        (name,) = [row["job"] for row in json.loads(command("jobs", "--json").stdout)]
        assert "final_loss=" in command("logs", name, "--rank", "0").stdout
        missing = command("logs", "controller")
        assert (missing.returncode, f"logs exist of: {name}." in missing.stderr) == (1, True)
        assert "docker compose logs controller" in missing.stderr

        # What a tool on this machine is given is what the operator passes on, and it is let in.
        given = json.loads(command("connect", "--json").stdout)
        assert given["nats"]["tls"]["key"] == str(machine.reader / "tls.key")
        assert machine.is_let_in(given["nats"]["url"], machine.reader)
        read = command("sql", "--database-url", given["postgres"]["dsn"], "--csv", "select current_user")
        assert (read.returncode, read.stdout.split()) == (0, ["current_user", "holdfast_reader"])

        def nodes_are_free() -> bool:
            status = command("status")
            assert (status.returncode, status.stderr) == (0, "")
            return "Nodes: 3 standby" in status.stdout

        # It is another service that sets them free, when it hears of the end.
        wait_for(nodes_are_free, "the nodes of a job that is over are not free", machine)

        # New passwords, as docs/compose.md has it: no process starts again.
        known = {name: (machine.own_secrets(name) / "nats.url").read_text() for name in (*AGENTS, "operator")}
        machine.make_secrets(*ELSEWHERE, "--renew", "node-1", "historian", "operator")
        subprocess.run(["sh", "-c", migrate], check=True, env=machine.environment("migrate"))
        bus.send_signal(signal.SIGHUP)
        wait_for(lambda: not machine.is_let_in(known["agent-1"]), "the old password of a node is still good", machine)
        assert [machine.is_let_in(known[name]) for name in ("operator", "agent-0")] == [False, True]
        for service in (*SERVICES, *AGENTS[:2]):
            wait_for(lambda service=service: machine.is_healthy(service), f"{service} is not healthy", machine)
        assert not [service for service, process in processes.items() if process.poll() is not None]
        wait_for(nodes_are_free, "a node did not come back", machine)
