"""Where a command finds its cluster."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.connect.addresses import both_urls, database_option, nats_option, nats_url, reader_url
from holdfast.cli.connect.directory import as_typed, directory_option, found_directory
from holdfast.cli.main import main
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Ports

HERE = "nats://127.0.0.1:2 postgresql://holdfast_reader@127.0.0.1:1/holdfast"
THERE = {"HOLDFAST_NATS_URL": "nats://127.0.0.2", "HOLDFAST_DATABASE_URL": "postgresql://127.0.0.2"}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*THERE, "HOLDFAST_DIR", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stopped(project: Path) -> Path:
    """The directory of a cluster that is down."""
    layout = ClusterLayout(project / ".holdfast")
    layout.create()
    layout.write_info(
        ClusterInfo(
            version="1",
            pid=None,
            ports=Ports(postgres=1, nats=2, nats_monitor=3),
            nats_url="nats://127.0.0.1:2",
            nats_monitor_url="http://127.0.0.1:3",
            database_urls={
                "reader": "postgresql://holdfast_reader@127.0.0.1:1/holdfast",
                "admin": "postgresql://never",
            },
            nodes=[],
        )
    )
    return layout.root


@pytest.fixture
def cluster(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same with a supervisor that listens."""
    with socket.socket(socket.AF_UNIX) as supervisor:
        with monkeypatch.context() as there:
            there.chdir(stopped)
            supervisor.bind("control.sock")
        supervisor.listen()
        yield stopped


@click.command()
@directory_option
@nats_option
@database_option
def _both(directory: Path, nats_url: str | None, database_url: str | None) -> None:
    click.echo(" ".join(both_urls(directory, nats_url, database_url)))


def both(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(_both, [str(argument) for argument in arguments], env=environment)


def test_the_embedded_cluster_is_read_as_the_reader(cluster: Path) -> None:
    assert f"{nats_url(cluster, None)} {reader_url(cluster, None)}" == HERE


@pytest.mark.parametrize("named", ["--dir", "HOLDFAST_DIR"])
def test_a_directory_that_is_named_goes_before_the_environment(cluster: Path, named: str) -> None:
    told = both("--dir", cluster, **THERE) if named == "--dir" else both(HOLDFAST_DIR=str(cluster), **THERE)
    assert told.output == HERE + "\n"


def test_the_environment_goes_before_a_directory_that_is_only_found(cluster: Path) -> None:
    assert both().output == HERE + "\n"
    assert both(**THERE).output == "nats://127.0.0.2 postgresql://127.0.0.2\n"


def test_the_configuration_file_counts_as_the_environment(cluster: Path, project: Path) -> None:
    (project / "holdfast.toml").write_text('nats_url = "nats://127.0.0.3"\ndatabase_url = "postgresql://127.0.0.3"\n')
    assert both().output == "nats://127.0.0.3 postgresql://127.0.0.3\n"
    assert both("--dir", cluster).output == HERE + "\n"


def test_a_directory_that_the_group_is_told_is_the_subcommands(stopped: Path, project: Path) -> None:
    other = project / "other"
    told = CliRunner().invoke(main, ["nodes", "--dir", str(other), "release", "node-1"], env=THERE)
    assert f"no cluster here ({other})" in told.output
    told = CliRunner().invoke(main, ["nodes", "--dir", str(other), "release", "node-1", "--dir", str(stopped)])
    assert f"the cluster in {stopped} is not running" in told.output
    told = CliRunner().invoke(
        main, ["nodes", "--dir", str(other), "release", "node-1"], env={"HOLDFAST_DIR": str(stopped)}
    )
    assert f"no cluster here ({other})" in told.output, "what is typed goes before the environment"


def test_flags_go_first_and_one_of_them_may_correct_a_directory_that_is_named(cluster: Path) -> None:
    flags = ("--nats-url", "nats://127.0.0.4", "--database-url", "postgresql://127.0.0.4")
    assert both(*flags, "--dir", cluster, **THERE).output == "nats://127.0.0.4 postgresql://127.0.0.4\n"
    assert both(*flags[:2], "--dir", cluster, **THERE).output == "nats://127.0.0.4 " + HERE.split()[1] + "\n"


def test_a_command_that_asks_which_kind_of_cluster_it_is_takes_one_flag_as_well(stopped: Path) -> None:
    told = CliRunner().invoke(main, ["status", "--dir", str(stopped), "--nats-url", "nats://127.0.0.4"])
    assert f"The cluster in {stopped} is not running" in told.output


@pytest.mark.parametrize("name", THERE)
def test_half_a_cluster_is_refused_and_the_other_half_is_asked_for(cluster: Path, name: str) -> None:
    (other,) = THERE.keys() - {name}
    told = both(**{name: THERE[name]})
    assert told.exit_code == 1
    assert f"(by {name})" in told.output and f"set {other} too" in told.output
    told = both("--nats-url", "nats://127.0.0.4", **THERE)
    assert told.exit_code == 1 and "--database-url" in told.output


def test_a_command_that_needs_one_address_is_content_with_it(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://127.0.0.2")
    assert reader_url(cluster, None) == "postgresql://127.0.0.2"
    with pytest.raises(click.ClickException, match="set HOLDFAST_NATS_URL too"):
        nats_url(cluster, None)


def test_without_either_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"no cluster here .*`holdfast up`.*--database-url"):
        reader_url(tmp_path, None)
    with pytest.raises(click.ClickException, match=r"--nats-url"):
        nats_url(tmp_path, None)


def test_a_cluster_that_is_down_is_said_to_be_down(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.ClickException, match="is not running: start it with `holdfast up`"):
        reader_url(stopped, None)
    monkeypatch.chdir("/")
    with pytest.raises(click.ClickException, match=f"start it with `holdfast up --dir {stopped}`"):
        nats_url(stopped, None)


def test_a_damaged_cluster_file_is_named(cluster: Path) -> None:
    ClusterLayout(cluster).cluster_file.write_text("{")
    with pytest.raises(click.ClickException, match="damaged"):
        reader_url(cluster, None)


def test_the_cluster_is_found_from_below_its_directory(
    stopped: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "src" / "model"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert found_directory() == stopped
    assert as_typed("status", stopped) == "holdfast status"
    # `up` makes one where it is.
    assert as_typed("up", stopped) == f"holdfast up --dir {stopped}"
    monkeypatch.setattr("os.geteuid", lambda: stopped.stat().st_uid + 1)
    assert found_directory() == Path(".holdfast"), "a stranger's"


def test_a_directory_of_another_user_is_not_found_by_a_link_to_a_cluster_of_this_one(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "world" / ".holdfast"
    theirs.mkdir(parents=True)
    (theirs / "cluster.json").symlink_to(stopped / "cluster.json")
    monkeypatch.chdir(theirs.parent)
    # They would serve its control socket, and have the directories of jobs.
    assert found_directory() == stopped, "the one above"
    shutil.rmtree(theirs)
    theirs.symlink_to(stopped)
    assert found_directory() == stopped, "what it leads to now, wherever it leads to later"
