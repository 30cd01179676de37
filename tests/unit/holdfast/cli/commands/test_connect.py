"""`holdfast connect` hands out what a reader needs, and nothing by which a tool could write."""

from __future__ import annotations

import json
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.connect.reader import ReaderAccess, settings_file
from holdfast.cli.main import main
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Fabric, Ports
from holdfast.embedded.servers.credentials import database_urls, load_or_create, nats_url
from holdfast.settings import load
from holdfast.settings.network import NetworkPolicy

PORTS = Ports(postgres=1, nats=2, nats_monitor=3)
BUS, DATABASE = "HOLDFAST_NATS_URL", "HOLDFAST_DATABASE_URL"
READER_CONFIG = "HOLDFAST_NETWORK_READER_CONFIG"
OPERATOR = "tls://operator:secret@127.0.0.1:4222"
READER = "tls://reader:pass@127.0.0.1:4222"
ROLE = "postgresql://holdfast_reader:word@127.0.0.1:5432/holdfast"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (BUS, DATABASE, READER_CONFIG, "HOLDFAST_DIR", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_cluster(root: Path, fabric: Fabric | None = None) -> ClusterLayout:
    layout = ClusterLayout(root / ".holdfast")
    layout.create()
    known = load_or_create(layout, ["node-0"])
    layout.write_info(
        ClusterInfo(
            version="1",
            pid=None,
            ports=PORTS,
            nats_url=nats_url(known, PORTS),
            nats_monitor_url="http://127.0.0.1:3",
            database_urls=database_urls(known, PORTS),
            nodes=["node-0"],
            fabric=fabric,
        )
    )
    return layout


@pytest.fixture
def supervised(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket that listens where that of a supervisor would."""
    (project / ".holdfast").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as supervisor:
        with monkeypatch.context() as there:
            there.chdir(project / ".holdfast")
            supervisor.bind("control.sock")
        supervisor.listen()
        yield project


def connect(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["connect", *arguments])


def refusal(*arguments: str) -> str:
    done = connect(*arguments)
    assert done.exit_code == 1, done.output
    return done.output


def test_a_cluster_here_gives_the_readers_passwords_and_no_others(supervised: Path) -> None:
    layout = make_cluster(supervised)
    kept = json.loads(layout.secrets_file.read_text())
    own = (kept["bus"]["reader"], kept["roles"]["holdfast_reader"])
    for form in ((), ("--env",), ("--json",)):
        shown = connect(*form)
        assert shown.exit_code == 0, shown.output
        assert all(word in shown.output for word in own)
        others = {*kept["bus"].values(), *kept["roles"].values(), kept["postgres"], *kept["order_keys"].values()}
        assert not [word for word in others - set(own) if word in shown.output]
    assert connect("--dsn").output == f"postgresql://holdfast_reader:{own[1]}@127.0.0.1:1/holdfast\n"

    data = json.loads(connect("--json").stdout)
    assert (data["nats"]["user"], data["nats"]["password"]) == ("reader", own[0])
    assert (data["nats"]["servers"], data["nats"]["tls"]) == (["nats://127.0.0.1:2"], None)
    assert data["postgres"]["user"] == "holdfast_reader" and data["postgres"]["password"] == own[1]
    assert Path(data["asyncapi"]).read_text().startswith("asyncapi:")


def test_nodes_in_networks_of_their_own_do_not_change_what_a_tool_is_given(supervised: Path) -> None:
    make_cluster(supervised, Fabric(bridge="b", subnet="10.9.8"))
    (server,) = json.loads(connect("--json").stdout)["nats"]["servers"]
    assert server == "nats://10.9.8.1:2"
    assert "plain_text" not in connect().output


def test_what_is_written_is_closed_to_other_users(supervised: Path) -> None:
    make_cluster(supervised)
    done = connect("--env", "--output", "reader.env")
    assert (done.exit_code, done.output) == (0, "")
    file = supervised / "reader.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == connect("--env").output
    assert "reader.env cannot be written: No such file or directory" in refusal("-o", "nowhere/reader.env")


def test_a_cluster_that_is_missing_or_down_is_named_with_the_cure(project: Path) -> None:
    assert "start one with `holdfast up`" in refusal()
    layout = make_cluster(project)
    assert "is not running: start it with `holdfast up`" in refusal()
    assert str(layout.root) in refusal()


def test_damaged_or_missing_passwords_are_named(supervised: Path) -> None:
    layout = make_cluster(supervised)
    layout.secrets_file.write_text("{")
    assert "secrets.json is damaged" in refusal()
    layout.secrets_file.unlink()
    assert "secrets.json cannot be read: No such file or directory" in refusal()


def test_addresses_of_a_user_who_may_write_are_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUS, OPERATOR)
    monkeypatch.setenv(DATABASE, ROLE)
    message = refusal()
    assert "NATS is that of operator, not of reader" in message and READER_CONFIG in message
    assert "secret" not in message

    monkeypatch.setenv(BUS, READER)
    assert connect("--dsn").output == f"{ROLE}\n"
    for other in ("holdfast_controller", "postgres"):
        monkeypatch.setenv(DATABASE, ROLE.replace("holdfast_reader", other))
        assert f"Postgres is that of {other}, not of holdfast_reader" in refusal()
    monkeypatch.setenv(DATABASE, f"{ROLE}?user=postgres")
    assert "Postgres is that of postgres" in refusal()


def test_an_operator_passes_on_the_readers_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUS, OPERATOR)
    monkeypatch.setenv(DATABASE, ROLE)
    monkeypatch.setenv(READER_CONFIG, "reader.toml")
    assert "cannot read the configuration file reader.toml" in refusal()
    file = project / "reader.toml"
    file.write_text(f'nats_url = "{OPERATOR}"\ndatabase_url = "{ROLE}"\n')
    assert "NATS is that of operator" in refusal()
    file.write_text(f'nats_url = "nats://reader:pass@192.0.2.1:4222"\ndatabase_url = "{ROLE}"\n')
    assert "would be reached without TLS" in refusal()
    file.write_text(f'nats_url = "{READER}"\ndatabase_url = "{ROLE}2"\n[network]\ntls_ca = "/theirs"\n')
    assert connect("--dsn").output == f"{ROLE}2\n"
    shown = connect("--json")
    assert "secret" not in shown.output and json.loads(shown.stdout)["nats"]["tls"] == {"ca": "/theirs"}


def test_a_shell_takes_every_value_as_it_is(tmp_path: Path) -> None:
    access = ReaderAccess(
        nats_url="tls://reader:a%27b@one:4222,tls://reader:a%27b@two:4223",
        database_url="postgresql://holdfast_reader:%24x%27%20y@one:1,two/hold%20fast?sslmode=verify-full&sslrootcert=/a%20b",
        network=NetworkPolicy(tls_ca="/a b/ca.pem", tls_cert="/t", tls_key="/k"),
    )
    printed = subprocess.run(
        ["sh", "-c", access.exports() + "env"], env={}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {line for line in printed if line.startswith(("NATS", "PG"))} == {
        f"NATS_URL={access.nats_url}",
        "NATS_CA=/a b/ca.pem",
        "NATS_CERT=/t",
        "NATS_KEY=/k",
        "NATS_INBOX_PREFIX=_INBOX.reader",
        "PGHOST=one,two",
        "PGPORT=1,5432",
        "PGUSER=holdfast_reader",
        "PGPASSWORD=$x' y",
        "PGDATABASE=hold fast",
        "PGSSLMODE=verify-full",
        "PGSSLROOTCERT=/a b",
    }
    assert shlex.quote("/a b") in access.exports()


def test_the_settings_of_a_reader_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = NetworkPolicy(tls_ca="/ca", tls_cert="/cert", tls_key="/key")
    access = ReaderAccess(nats_url=READER, database_url=ROLE, network=files)
    file = tmp_path / "reader.toml"
    file.write_text(settings_file(access))
    settings, _ = load.load({"HOLDFAST_CONFIG": str(file)})
    assert (settings.nats_url, settings.database_url, settings.network) == (READER, ROLE, files)
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    assert json.loads(connect("--json").stdout)["nats"]["tls"] == {"ca": "/ca", "cert": "/cert", "key": "/key"}
