"""`holdfast up` finds and checks the configuration where it is called, and hands it to every child."""

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.daemon.process import leave_limit_s
from holdfast.embedded.configuration import Configuration, find_configuration
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Fabric, Ports
from holdfast.embedded.services import agent_spec, base_environment, cluster_plan, service_specs
from holdfast.settings.timeouts import Timeouts

INFO = ClusterInfo(
    version="0",
    pid=None,
    ports=Ports(postgres=1, nats=2, nats_monitor=3),
    nats_url="nats://here:2",
    nats_monitor_url="http://here:3",
    database_urls=dict.fromkeys(("controller", "analyzer", "standby", "ckpt", "historian"), "postgresql://here"),
    nodes=["node-0"],
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # That of this worker, which clusters of other tests share.
    monkeypatch.delenv("HOLDFAST_NURSERY", raising=False)
    return tmp_path


def test_the_file_beside_the_user_is_found_and_named_absolutely(here: Path) -> None:
    (here / "holdfast.toml").write_text("[timeouts]\nstop_grace_s = 7\n")
    found = find_configuration({"HOLDFAST_JOBS_RUN_AS": "agent"})
    assert found == Configuration(file=here / "holdfast.toml", timeouts=Timeouts(stop_grace_s=7))
    assert found.environment() == {"HOLDFAST_CONFIG": str(here / "holdfast.toml")}


def test_a_named_file_goes_before_it(here: Path) -> None:
    (here / "holdfast.toml").write_text("[timeouts]\nstop_grace_s = 7\n")
    (here / "other.toml").write_text("[timeouts]\nstop_grace_s = 8\n")
    (here / "third.toml").write_text("")
    assert find_configuration({"HOLDFAST_CONFIG": "other.toml"}).file == here / "other.toml"
    assert find_configuration({"HOLDFAST_CONFIG": "other.toml"}, "third.toml").file == here / "third.toml"


def test_without_a_file_a_child_reads_none_even_where_it_works(here: Path) -> None:
    found = find_configuration({"HOLDFAST_JOBS_RUN_AS": "agent"})
    assert found == Configuration()
    inside = here / "state"
    inside.mkdir()
    (inside / "holdfast.toml").write_text("[timeouts]\nstop_grace_s = 9\n")
    os.chdir(inside)
    assert find_configuration(found.environment()).timeouts == Timeouts()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[timeouts]\nnode_lost_s = 1\n", "node_lost_s = 1 must be at least 3 x heartbeat_s"),
        ("[pool]\nsise = 1\n", "sise"),
        ("=", "cannot read the configuration file"),
    ],
)
def test_what_a_service_would_refuse_is_refused_before_anything_starts(here: Path, text: str, reason: str) -> None:
    (here / "holdfast.toml").write_text(text)
    with pytest.raises(EmbeddedError, match=reason):
        find_configuration({})


def test_every_child_gets_the_file_and_time_for_its_end(here: Path) -> None:
    configuration = Configuration(file=here / "holdfast.toml", timeouts=Timeouts(stop_grace_s=25))
    layout = ClusterLayout(here / "state")
    for spec in (
        *service_specs(configuration, layout),
        agent_spec(configuration, layout, INFO, "node-0"),
    ):
        assert spec.environment["HOLDFAST_CONFIG"] == str(here / "holdfast.toml")
        assert spec.stop_grace_s > leave_limit_s(configuration.timeouts) > 25


def test_settings_from_files_are_found_from_a_childs_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POOL_SIZE_FILE", "size")
    others = ("HOLDFAST_DATABASE_URL", "HOLDFAST_NETWORK_ORDER_KEY", "HOLDFAST_NETWORK_ORDER_KEYS")
    for name in others:
        monkeypatch.setenv(f"{name}_FILE", "another.cluster")
        monkeypatch.setenv(name, "another cluster's")
    environment = base_environment()
    assert environment["HOLDFAST_POOL_SIZE_FILE"] == str(here / "size")
    assert not {*others, *(f"{name}_FILE" for name in others)} & environment.keys()


def test_a_node_may_have_settings_of_its_own(here: Path) -> None:
    layout = ClusterLayout(here / "cluster")
    layout.create()
    layout.node("node-0").mkdir()
    (here / "holdfast.toml").write_text("")
    found = find_configuration({"HOLDFAST_JOBS_RUN_AS": "agent"})
    assert agent_spec(found, layout, INFO, "node-0").environment["HOLDFAST_CONFIG"] == str(here / "holdfast.toml")
    layout.node_settings("node-0").write_text("")
    own = agent_spec(found, layout, INFO, "node-0").environment["HOLDFAST_CONFIG"]
    assert own == str(layout.node("node-0") / "holdfast.toml")


def test_agents_find_the_nursery_also_from_networks_of_their_own(here: Path) -> None:
    configuration, layout = find_configuration({}), ClusterLayout(here)
    plan = cluster_plan(configuration)
    (nursery,) = plan.early(layout, INFO)
    assert plan.agent(layout, INFO, "node-0").environment["HOLDFAST_NURSERY"] in nursery.argv
    assert not {"HOLDFAST_NURSERY", "HOLDFAST_NATS_URL", "HOLDFAST_DATABASE_URL"} & nursery.environment.keys()
    apart = msgspec.structs.replace(INFO, fabric=Fabric(bridge="hf123456", subnet="198.18.7"))
    assert plan.early(layout, apart) == [nursery]
    assert plan.agent(layout, apart, "node-0").environment["HOLDFAST_NURSERY"] in nursery.argv


def test_a_nursery_that_runs_already_is_shared(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NURSERY", "/run/nursery.sock")
    plan, layout = cluster_plan(find_configuration({})), ClusterLayout(here)
    assert plan.early(layout, INFO) == []
    assert plan.agent(layout, INFO, "node-0").environment["HOLDFAST_NURSERY"] == "/run/nursery.sock"


def test_a_cluster_for_one_run_starts_with_what_the_run_waits_for(here: Path) -> None:
    configuration, layout = find_configuration({}), ClusterLayout(here)
    plan, lasting = cluster_plan(configuration, for_one_run=True), cluster_plan(configuration)
    assert plan.late < {spec.name for spec in plan.services(layout, INFO)} and not lasting.late
    assert "--brief" in plan.early(layout, INFO)[0].argv and "--brief" not in lasting.early(layout, INFO)[0].argv


def test_a_node_with_a_network_of_its_own_runs_in_it_and_is_reached_there(here: Path) -> None:
    network = Fabric(bridge="hf123456", subnet="198.18.7")
    spec = agent_spec(
        find_configuration({}), ClusterLayout(here), msgspec.structs.replace(INFO, fabric=network), "node-3"
    )
    assert spec.argv[:2] == ("nsenter", "--net=/run/netns/hf123456-node-3")
    assert spec.argv[-2:] == ("--address", "198.18.7.13")
    assert spec.environment["GLOO_SOCKET_IFNAME"] == "eth0"
