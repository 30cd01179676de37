"""`holdfast config`: what a cluster runs with, and what a process started here would."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast.cli.commands.cluster.config as command
from holdfast.cli.commands.cluster.down import _patience_s
from holdfast.cli.main import main
from holdfast.embedded.configuration import find_configuration
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Ports


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterInfo:
    """A cluster that was started with lab.toml and an address in the environment, which is not its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text("[timeouts]\nstop_grace_s = 7\n[checkpoint]\nmemory_bytes = 137438953472\n")
    layout = ClusterLayout(tmp_path / ".holdfast")
    layout.create()
    info = ClusterInfo(
        version="1",
        pid=None,
        ports=Ports(postgres=1, nats=2, nats_monitor=3),
        nats_url="nats://here:2",
        nats_monitor_url="http://here:3",
        database_urls={},
        nodes=[],
        settings=find_configuration({"HOLDFAST_NATS_URL": "nats://user:hunter2@there"}, "lab.toml").settings,
    )
    layout.write_info(info)
    assert "hunter2" not in layout.cluster_file.read_text()
    return info


def shown(*arguments: str) -> dict[str, list[str]]:
    result = CliRunner().invoke(main, ["config", *arguments])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    return {row[0]: row[1:] for row in rows if row}


def test_a_cluster_that_is_named_shows_what_it_was_started_with(cluster: ClusterInfo) -> None:
    rows = shown("--dir", ".holdfast")
    assert rows["timeouts.stop_grace_s"] == ["7", "lab.toml"]
    assert rows["checkpoint.memory_bytes"] == ["137438953472", "lab.toml"]
    assert rows["rank"][:3] == ["killed", "after", "7"]
    assert _patience_s(cluster) == 104


def test_one_that_runs_goes_before_what_is_set_here_unless_that_is_the_address_of_another(
    cluster: ClusterInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "is_running", lambda layout: True)
    monkeypatch.setenv("HOLDFAST_TIMEOUTS_STOP_GRACE_S", "3")
    assert shown()["timeouts.stop_grace_s"] == ["7", "lab.toml"]
    monkeypatch.setenv("HOLDFAST_NATS_URL", "nats://127.0.0.1")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://127.0.0.1")
    assert shown()["timeouts.stop_grace_s"][0] == "3"
    assert shown("--dir", ".holdfast")["timeouts.stop_grace_s"] == ["7", "lab.toml"]


def test_with_none_that_runs_and_with_a_file_it_is_what_a_process_would_have(cluster: ClusterInfo) -> None:
    assert shown()["timeouts.stop_grace_s"] == ["30", "default"]
    assert shown("--dir", ".holdfast", "--config", "/dev/null")["timeouts.stop_grace_s"] == ["30", "default"]


def test_settings_are_explained_by_section_and_by_name(cluster: ClusterInfo) -> None:
    result = CliRunner().invoke(main, ["config", "--dir", ".holdfast", "pool", "stop_grace_s"])
    assert result.exit_code == 0, result.output
    explained = result.output.split("\n\n")
    heads = [one.splitlines()[0] for one in explained]
    assert heads[-1].startswith("timeouts.stop_grace_s = 7 (lab.toml; default 30), 0.05 to 600")
    assert {head.split(".")[0] for head in heads[:-1]} == {"pool"}
    assert "Time between SIGTERM and SIGKILL" in " ".join(explained[-1].split())
    assert shown("--dir", ".holdfast")["slow.test"][0] == "true", "as in a TOML file"
    wrong = CliRunner().invoke(main, ["config", "timeouts.node_lost"])
    assert (wrong.exit_code, "perhaps timeouts.node_lost_s is meant" in wrong.output) == (2, True)
