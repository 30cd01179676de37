"""Whose logs `holdfast logs` finds below a cluster's directory."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.commands.cluster.logs import _files, _of_cluster, _prefixes
from holdfast.cli.main import main
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterLayout


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    layout = ClusterLayout(tmp_path)
    layout.create()
    layout.log("controller").touch()
    for node, rank in (("node-0", 0), ("node-1", 1), ("node-2", 10), ("node-3", 1)):
        for job in ("gpt", "controller"):
            folder = layout.node(node) / "logs" / job
            folder.mkdir(parents=True)
            (folder / f"rank-{rank}.out").touch()
            (folder / f"rank-{rank}.err.1").touch()
    return layout


def test_the_ranks_of_a_job_in_their_order_wherever_they_ran(layout: ClusterLayout) -> None:
    found = list(_files(_of_cluster(layout), "gpt", None))
    assert [name.split()[1] for name in found] == ["rank-0.out", "rank-1.out", "rank-1.out", "rank-10.out"]
    assert set(_files(_of_cluster(layout), "gpt", 1)) == {"node-1 rank-1.out", "node-3 rank-1.out"}
    assert _prefixes(found)[found[0]] == "node-0 rank-0.out  | "
    assert _prefixes(found[:1]) == {found[0]: ""}


def test_a_service_goes_before_a_job_of_its_name(layout: ClusterLayout) -> None:
    assert _files(_of_cluster(layout), "controller", None) == {"controller": layout.log("controller")}
    assert list(_files(_of_cluster(layout), "controller", 0)) == ["node-0 rank-0.out"]


def test_what_is_not_there_is_said_with_what_is(layout: ClusterLayout) -> None:
    with pytest.raises(
        EmbeddedError, match=r"no log of 'other' .* logs exist of controller, .* jobs: controller, gpt\.$"
    ):
        _files(_of_cluster(layout), "other", None)
    with pytest.raises(
        EmbeddedError, match="rank 7 of job 'gpt' has printed nothing; there is output of rank 0, 1, 10"
    ):
        _files(_of_cluster(layout), "gpt", 7)
    with pytest.raises(click.ClickException, match="is not a valid name"):
        _files(_of_cluster(layout), "../*", 0)


def test_what_checks_printed_is_found_by_asking_for_it_or_where_there_is_nothing_else(layout: ClusterLayout) -> None:
    for job, run in (("gpt", "checks-1-4"), ("diagnose-1", "checks-2-1")):
        folder = layout.node("node-0") / "logs" / job / run
        folder.mkdir(parents=True)
        (folder / "rank-0.out").touch()
    assert list(_files(_of_cluster(layout), "gpt", None, checks=True)) == ["node-0 checks-1-4/rank-0.out"]
    assert list(_files(_of_cluster(layout), "diagnose-1", None)) == ["node-0 checks-2-1/rank-0.out"]
    assert "node-0 rank-0.out" in _files(_of_cluster(layout), "gpt", None)
    with pytest.raises(EmbeddedError, match="no log of checks of 'controller'"):
        _files(_of_cluster(layout), "controller", None, checks=True)


def test_in_a_cluster_elsewhere_ranks_are_found_where_their_nodes_logs_are_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DIR", raising=False)
    folder = tmp_path / "mounted" / "node-1" / "logs" / "gpt"
    folder.mkdir(parents=True)
    (folder / "rank-3.out").write_text("step 7\n")
    monkeypatch.setenv("HOLDFAST_NODE_LOGS", str(tmp_path / "mounted"))

    def logs(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["logs", *arguments])
        return done.exit_code, done.output

    assert logs("gpt", "--rank", "3") == (0, "step 7\n")
    assert logs("gpt", "--rank", "4") == (
        1,
        "Error: rank 4 of job 'gpt' has printed nothing; there is output of rank 3.\n",
    )
    for arguments in ((), ("controller",), ("other", "--rank", "4")):
        code, output = logs(*arguments)
        assert code == 1 and "logs exist of: gpt. Read those of services and agents where they run" in output
    code, output = logs("gpt", "--dir", str(tmp_path))
    assert code == 1 and "there is no cluster in" in output and "--node-logs" in output


def test_the_output_of_a_job_that_had_a_cluster_for_itself_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = ClusterLayout(tmp_path / ".holdfast" / "runs" / "train-1").node("node-0") / "logs" / "train-1"
    folder.mkdir(parents=True)
    (folder / "rank-0.out").write_text("step 1\n")
    shown = CliRunner().invoke(main, ["logs", "train-1"])
    assert (shown.exit_code, shown.output) == (0, "step 1\n"), shown.output
    assert CliRunner().invoke(main, ["logs", "other"]).exit_code == 1
