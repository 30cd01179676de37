import os
from pathlib import Path

import msgspec
import pytest

from holdfast.daemon.orders.order_keys import PRIVATE_VARIABLE, PUBLIC_VARIABLE
from holdfast.embedded.configuration import Configuration
from holdfast.embedded.errors import ClusterAlreadyRunning, EmbeddedError, NoCluster
from holdfast.embedded.layout import SERVICES, ClusterInfo, ClusterLayout, Ports, write_private
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers import credentials
from holdfast.embedded.servers.access import Access
from holdfast.embedded.services import agent_spec, service_specs
from holdfast.orders.signatures import SIGNERS, public_keys

PORTS = Ports(postgres=1, nats=2, nats_monitor=3)
NODES = ["node-0"]


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    layout = ClusterLayout(tmp_path / "state")
    layout.create()
    return layout


def describe(layout: ClusterLayout) -> ClusterInfo:
    known = credentials.load_or_create(layout, NODES)
    return ClusterInfo(
        version="0",
        pid=os.getpid(),
        ports=PORTS,
        nats_url=credentials.nats_url(known, PORTS),
        nats_monitor_url="http://127.0.0.1:3",
        database_urls=credentials.database_urls(known, PORTS),
        nodes=NODES,
    )


def test_cluster_json_comes_back_and_only_its_owner_reads_it(layout: ClusterLayout) -> None:
    info = describe(layout)
    layout.write_info(info)
    assert ClusterInfo.load(layout.root) == info
    assert set(info.database_urls) == {"admin", "reader", *SERVICES}
    for file in (layout.cluster_file, layout.secrets_file):
        assert file.stat().st_mode & 0o777 == 0o600
    assert layout.root.stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_right_is_not_written_again_so_that_a_full_disk_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"

    def written(content: bytes) -> int:
        write_private(file, content, durable=False)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, 0o600)
        return file.stat().st_ino

    first = written(b"port: 1")
    assert written(b"port: 1") == first
    second = written(b"port: 2")
    assert second != first
    file.chmod(0o644)
    assert written(b"port: 2") != second


def test_a_file_that_another_user_made_where_the_new_one_is_drafted_receives_nothing(tmp_path: Path) -> None:
    draft = tmp_path / ".reader.json.new"
    draft.touch()
    with draft.open("rb") as theirs:
        write_private(tmp_path / "reader.json", b"password", durable=False)
        assert theirs.read() == b""
    draft.symlink_to(tmp_path / "elsewhere")
    write_private(tmp_path / "reader.json", b"another", durable=False)
    assert (tmp_path / "reader.json").read_bytes() == b"another" and not (tmp_path / "elsewhere").exists()


def test_fields_of_a_newer_holdfast_do_not_hurt(layout: ClusterLayout) -> None:
    data = msgspec.to_builtins(describe(layout)) | {"invented_later": 1}
    layout.cluster_file.write_bytes(msgspec.json.encode(data))
    assert ClusterInfo.load(layout.root) == describe(layout)


def test_no_cluster_and_a_damaged_one_are_told_apart(layout: ClusterLayout) -> None:
    with pytest.raises(NoCluster, match="holdfast up"):
        ClusterInfo.load(layout.root)
    layout.cluster_file.write_text("{")
    with pytest.raises(EmbeddedError, match="damaged"):
        ClusterInfo.load(layout.root)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match="--dir"):
        ClusterLayout(tmp_path / "file" / "state").create()


def test_the_lock_lets_one_in_and_names_it(layout: ClusterLayout) -> None:
    with layout.lock(), pytest.raises(ClusterAlreadyRunning, match=f"supervisor pid {os.getpid()}"), layout.lock():
        pytest.fail("unreachable")
    with layout.lock():
        pass


def test_passwords_are_made_once(layout: ClusterLayout) -> None:
    first = credentials.load_or_create(layout, NODES)
    assert credentials.load_or_create(layout, NODES) == first
    every = {first.postgres, *first.roles.values(), *first.bus.values(), *first.order_keys.values()}
    assert len(every) == 1 + len(first.roles) + len(first.bus) + len(first.order_keys)
    assert set(first.order_keys) == {"controller", "analyzer", "ckpt"}
    assert set(first.bus) == {*SERVICES, "operator", "reader", "agent-node-0"}

    more = credentials.load_or_create(layout, [*NODES, "node-1"])
    assert set(more.bus) - set(first.bus) == {"agent-node-1"}
    assert first.bus.items() <= more.bus.items()

    renewed = credentials.load_or_create(layout, NODES, renew=True)
    assert every.isdisjoint([*renewed.roles.values(), *renewed.bus.values(), *renewed.order_keys.values()])
    assert credentials.load_or_create(layout, NODES) == renewed


def test_a_cluster_of_a_release_without_signatures_gets_keys(layout: ClusterLayout) -> None:
    known = credentials.load_or_create(layout, NODES)
    before = msgspec.structs.replace(known, order_keys={})
    layout.secrets_file.write_bytes(msgspec.json.encode(before))
    after = credentials.load_or_create(layout, NODES)
    assert msgspec.structs.replace(after, order_keys={}) == before
    assert set(after.order_keys) == set(SIGNERS)
    assert credentials.load_or_create(layout, NODES) == after


def test_lost_passwords_of_a_live_database_are_not_replaced(layout: ClusterLayout) -> None:
    (layout.postgres / "data").mkdir()
    with pytest.raises(EmbeddedError, match="Put the file back"):
        credentials.load_or_create(layout, NODES)


def test_every_service_gets_its_own_role_and_key_and_an_agent_only_the_bus_and_public_keys(
    layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://another/cluster")
    monkeypatch.setenv("HOLDFAST_NODE_DIR", "/another/node")
    info = describe(layout)
    known = Access(layout, NODES, PORTS, "127.0.0.1", renew=False).credentials
    bus = known.bus
    for spec in service_specs(Configuration(), layout):
        assert f"//holdfast_{spec.name}:" in handed_out(spec, "HOLDFAST_DATABASE_URL")
        assert handed_out(spec, "HOLDFAST_NATS_URL") == f"nats://{spec.name}:{bus[spec.name]}@127.0.0.1:{PORTS.nats}"
        own = handed_out(spec, PRIVATE_VARIABLE) if spec.name in SIGNERS else None
        assert own == known.order_keys.get(spec.name)
        assert PUBLIC_VARIABLE + "_FILE" not in spec.environment
        assert "HOLDFAST_NODE_DIR" not in spec.environment
        assert spec.argv[-1] == f"holdfast_{spec.name}"
        assert not any("holdfast:" in argument for argument in spec.argv)
    agent = agent_spec(Configuration(), layout, info, "node-0")
    assert not {"HOLDFAST_DATABASE_URL_FILE", PRIVATE_VARIABLE + "_FILE"} & agent.environment.keys()
    assert handed_out(agent, PUBLIC_VARIABLE) == public_keys(known.order_keys)
    assert handed_out(agent, "HOLDFAST_NATS_URL").startswith(f"nats://agent-node-0:{bus['agent-node-0']}@")
    assert agent.environment["HOLDFAST_NODE_DIR"] == str(layout.node("node-0"))


def handed_out(spec: ChildSpec, variable: str) -> str:
    """The address in the file that a child is given; its environment, which /proc shows, has no password."""
    assert variable not in spec.environment
    file = Path(spec.environment[f"{variable}_FILE"])
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    return file.read_text()


def test_a_cluster_is_not_made_among_other_files(tmp_path: Path) -> None:
    thesis = ClusterLayout(tmp_path / "thesis")
    thesis.refuse_foreign()
    thesis.root.mkdir()
    thesis.refuse_foreign()
    (thesis.root / "chapter-1.tex").touch()
    with pytest.raises(EmbeddedError, match=r"holds other files \(chapter-1.tex, ...\) and no cluster"):
        thesis.refuse_foreign()
    # A start that failed leaves its lock.
    thesis.lock_file.touch()
    thesis.refuse_foreign()
    ours = ClusterLayout(tmp_path / ".holdfast")
    (ours.root / "demo").mkdir(parents=True)
    ours.refuse_foreign()
