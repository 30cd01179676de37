"""Certificates of a compose cluster: for whom they are made, and when they are renewed."""

import argparse
import runpy
from pathlib import Path
from typing import Any

import pytest

from holdfast.network.certificates import hosts_of, made_at
from holdfast.network.refusals import Refusals

MODULE = runpy.run_path(str(Path(__file__).parents[3] / "deploy" / "make_secrets.py"))


def made(folder: Path, nodes: str = "node-0=agent-0,node-1=agent-1", **flags: Any) -> dict[str, bytes]:
    """Make secrets; return the certificate of each folder."""
    MODULE["main"](folder, MODULE["parsed_nodes"](nodes), **({"renew": (), "renew_authority": False} | flags))
    return {file.parent.name: file.read_bytes() for file in folder.glob("*/tls.pem")}


def test_certificates_stay_until_they_are_for_other_hosts_or_a_renewal_is_asked_for(tmp_path: Path) -> None:
    first, authority = made(tmp_path), (tmp_path / "nats" / "ca.pem").read_bytes()
    assert made(tmp_path) == first
    nodes = "node-0=elsewhere/10.0.0.1,node-1=agent-1,node-2"
    moved = made(tmp_path, nodes)
    assert {name for name in first if first[name] != moved[name]} == {"agent-node-0"}
    assert hosts_of(moved["agent-node-0"]) == ["node-0", "elsewhere", "10.0.0.1"]
    assert hosts_of(moved["agent-node-2"]) == ["node-2"]
    renewed = made(tmp_path, nodes, renew={"agent-node-1", "ckpt", "nats"})
    assert {name for name in renewed if renewed[name] != moved[name]} == {"agent-node-1", "ckpt-coordinator", "nats"}
    assert (tmp_path / "nats" / "ca.pem").read_bytes() == authority
    replaced = made(tmp_path, nodes, renew_authority=True)
    assert all(replaced[name] != renewed[name] for name in replaced)
    assert {file.read_bytes() == authority for file in tmp_path.glob("*/ca.pem")} == {False}


def test_replaced_keys_of_orders_count_until_the_next_run(tmp_path: Path) -> None:
    def read(file: str) -> str:
        return (tmp_path / file).read_text()

    made(tmp_path)
    old, own = read("agent-node-0/orders.pub").split(), read("controller/order.key")
    made(tmp_path, renew={"keys"})
    both = read("agent-node-1/orders.pub").split()
    assert len(old) == 3 and len(both) == 6 and set(old) < set(both)
    assert read("controller/order.key") != own
    made(tmp_path)
    assert set(read("agent-node-0/orders.pub").split()) == set(both) - set(old)


def test_certificates_of_nodes_that_left_and_replaced_ones_are_refused_by_others(tmp_path: Path) -> None:
    def refused() -> str:
        return (tmp_path / "agent-node-0" / "refused").read_text()

    first = made(tmp_path)["agent-node-1"]
    assert refused() == ""
    renewed = made(tmp_path, renew={"agent-node-1"})["agent-node-1"]
    assert Refusals.parse(refused()).why(["node-1"], made_at(renewed)) == ""
    # Certificates count from whole seconds.
    assert f"node-1 {made_at(renewed).isoformat()}" in refused() and made_at(first) <= made_at(renewed)
    made(tmp_path, "node-0=agent-0")
    assert refused() == "node-1\n"
    again = made(tmp_path, renew={"agent-node-1"})["agent-node-1"]
    assert Refusals.parse(refused()).why(["node-1"], made_at(again)) == ""


def test_a_revoked_node_stays_out_until_it_is_restored_with_new_secrets(tmp_path: Path) -> None:
    def read(file: str) -> str:
        return (tmp_path / file).read_text()

    first, password = made(tmp_path)["agent-node-1"], read("agent-node-1/nats.url")
    assert "agent-node-1" in read("nats/nats.conf")
    for flags in ({"revoke": ["node-1"]}, {}):
        made(tmp_path, **flags)
        assert "agent-node-1" not in read("nats/nats.conf") and "agent-node-0" in read("nats/nats.conf")
        assert read("agent-node-0/refused") == "node-1\n"
    restored = made(tmp_path, restore=["node-1"])["agent-node-1"]
    assert restored != first and read("agent-node-1/nats.url") != password
    assert Refusals.parse(read("agent-node-0/refused")).why(["node-1"], made_at(restored)) == ""
    assert "agent-node-1" in read("nats/nats.conf")


def test_the_key_of_the_authority_stays_where_certificates_are_made(tmp_path: Path) -> None:
    made(tmp_path)
    key = (tmp_path / "kept" / "tls" / "authority.key").read_bytes()
    assert [file for file in tmp_path.rglob("*") if file.is_file() and key in file.read_bytes()] == [
        tmp_path / "kept" / "tls" / "authority.key"
    ]


@pytest.mark.parametrize(
    "nodes", ["nats", "node-0=postgres", "node-0=localhost", "node-0=here,node-1=here", "node-0=10.0.0.1"]
)
def test_a_node_gets_no_certificate_with_which_it_could_pass_for_another_process(nodes: str) -> None:
    assert "could pass" in MODULE["who_could_pass_for_another"](MODULE["parsed_nodes"](nodes), "10.0.0.1")


def test_a_name_that_no_node_can_have_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a valid name"):
        MODULE["parsed_nodes"]("a_b")


def test_each_other_machine_gets_its_own_files_and_addresses_and_nothing_of_others(tmp_path: Path) -> None:
    machines = {"a": ["10.0.0.11", "a.cluster"], "b": ["10.0.0.12"]}
    made(tmp_path, machines=machines, head="10.0.0.1", reader_ports=(14222, 15432))
    folders = {folder.name: folder for folder in (tmp_path / "machines").iterdir()}
    certificate = {"ca.pem", "tls.pem", "tls.key", "holdfast.env"}
    assert {name: {file.name for file in folder.iterdir()} for name, folder in folders.items()} == {
        **{node: {*certificate, "nats.url", "orders.pub", "refused"} for node in machines},
        "operator": {*certificate, "nats.url", "database.url"},
    }
    assert {file.stat().st_mode & 0o777 for folder in folders.values() for file in folder.iterdir()} == {0o600}
    passwords = {file.name: file.read_text() for file in (tmp_path / "kept" / "bus").iterdir()}
    for name, user in {"a": "agent-a", "b": "agent-b", "operator": "operator"}.items():
        assert (folders[name] / "nats.url").read_text() == f"tls://{user}:{passwords[user]}@10.0.0.1:14222"
    assert "@10.0.0.1:15432/" in (folders["operator"] / "database.url").read_text()
    variables = dict(line.split("=", 1) for line in (folders["a"] / "holdfast.env").read_text().splitlines())
    assert (variables["NODE"], variables["ADDRESS"]) == ("a", "10.0.0.11")
    named = {Path(value).name for value in variables.values() if value.startswith("/etc/holdfast/")}
    assert named == {file.name for file in folders["a"].iterdir()} - {"holdfast.env"}
    assert hosts_of((folders["a"] / "tls.pem").read_bytes()) == ["a", "10.0.0.11", "a.cluster"]
    assert "10.0.0.1" in hosts_of((tmp_path / "nats" / "tls.pem").read_bytes())
    made(tmp_path, machines={"a": machines["a"]}, head="10.0.0.1")
    assert (folders["a"] / "refused").read_text() == "b\n"
