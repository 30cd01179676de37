"""What `holdfast run` asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands.jobs import run as command
from holdfast.cli.main import main
from holdfast.code.snapshot import Snapshot
from holdfast.events.parts.job import JobSpec
from holdfast.node.rank_variables import SCRIPT_LINK


class Asked(list[JobSpec]):
    """`holdfast run` in a directory with train.py, and the jobs that it asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "train.py").touch()

    def run(self, *arguments: str) -> Result:
        addresses = ["--nats-url", "nats://127.0.0.1", "--database-url", "postgresql://127.0.0.1"]
        return CliRunner().invoke(main, ["run", "--dir", str(self._directory), *addresses, *arguments])

    def train(self, *options: str) -> JobSpec:
        result = self.run(*options, str(self._directory / "train.py"))
        assert result.exit_code == 0, result.output
        return self[-1]

    def refusal(self, *options: str) -> str:
        result = self.run(*options, str(self._directory / "train.py"))
        assert result.exit_code in (1, 2) and "Traceback" not in result.output, result.output
        return result.output


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    specs = Asked(tmp_path)

    async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool, code: Snapshot | None) -> int:
        specs.append(spec)
        return 0

    monkeypatch.setattr("holdfast.cli.commands.jobs.run.follow", follow)
    return specs


def test_every_job_gets_a_token_of_its_own_and_no_flag_names_it(asked: Asked, tmp_path: Path) -> None:
    for _ in range(2):
        result = asked.run(str(tmp_path / "train.py"))
        assert result.exit_code == 0, result.output
        assert asked[-1].token not in result.output
    first, second = (spec.token for spec in asked)
    assert first != second and min(len(first), len(second)) >= 32
    assert not any("token" in option.name for option in command.run.params if option.name)


def test_the_launchers_own_variables_are_refused(asked: Asked) -> None:
    assert "--env RANK: the launcher sets it for each rank" in asked.refusal("-e", "RANK=7")
    assert asked.train("--env-none", "-e", "OMP_NUM_THREADS=4").env == {"OMP_NUM_THREADS": "4"}


def test_a_variable_that_is_only_named_is_as_it_is_here(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert asked.train("--env-none", "-e", "WANDB_MODE", "-e", "EMPTY=").env == {"WANDB_MODE": "offline", "EMPTY": ""}
    assert asked.train().env["WANDB_MODE"] == "offline"
    monkeypatch.delenv("WANDB_MODE")
    assert "WANDB_MODE is not set in this environment" in asked.refusal("-e", "WANDB_MODE")


def test_options_are_spelt_as_torchrun_spells_them_and_the_scripts_are_its_own(asked: Asked, tmp_path: Path) -> None:
    spec = asked.train("--nproc_per_node=2", "--nnodes", "3", "--job_dir", str(tmp_path / "job_dir"))
    assert (spec.nnodes, spec.nproc_per_node, spec.directory) == (3, 2, str(tmp_path / "job_dir"))
    script = str(tmp_path / "train.py")
    assert asked.run(script, "--nproc_per_node", "8", "--name", "a_b", "-x").exit_code == 0
    assert asked[-1].args == ("--nproc_per_node", "8", "--name", "a_b", "-x")


@pytest.mark.parametrize("option", ["--rdzv_back=c10d", "--nproc=2", "-x"])
def test_an_option_that_is_not_there_is_named(asked: Asked, option: str) -> None:
    assert "No such option" in asked.refusal(option)


def test_a_job_dir_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    arguments = ["run", "--dir", str(tmp_path), "--job-dir", "/proc/nope", str(script)]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 1 and "--job-dir /proc/nope: nothing can be written there" in told.output
    # One that can be made is not, and that no cluster runs here is said.
    arguments[4] = str(tmp_path / "a" / "b")
    assert "no cluster here" in CliRunner().invoke(main, arguments).output
    assert not (tmp_path / "a").exists()


def test_tags_of_training_logs_are_named_by_quantity(asked: Asked) -> None:
    spec = asked.train("--tag", "loss=objective/a=b", "--tag", "mfu=perf", "--training-log", "logs/*")
    assert spec.tags == {"loss": "objective/a=b", "mfu": "perf"} and spec.training_logs == ("logs/*",)
    for wrong in ("objective/loss", "losses=a", "loss="):
        assert "give QUANTITY=TAG with a quantity of loss, grad_norm" in asked.refusal("--tag", wrong)


def test_memory_checkpoints_are_switched_on_by_their_flag_alone(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY_CHECKPOINTS", "1")
    assert "HOLDFAST_MEMORY_CHECKPOINTS" not in asked.train().env
    assert asked.train("--memory-checkpoints").env["HOLDFAST_MEMORY_CHECKPOINTS"] == "1"
    assert asked.train("--memory-checkpoints", "--env-none").env == {"HOLDFAST_MEMORY_CHECKPOINTS": "1"}


def test_a_program_is_called_by_the_name_that_was_given_though_it_is_a_link(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.touch(mode=0o755)
    link = tmp_path / "environment" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    monkeypatch.setenv("PATH", str(link.parent))
    monkeypatch.chdir(tmp_path)
    for name in ("python", "environment/bin/python"):
        result = asked.run("--no-python", name, "train.py")
        assert result.exit_code == 0, result.output
        assert asked[-1].script == str(link)


def test_a_script_that_is_a_link_keeps_its_name(asked: Asked, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "train.py")
    assert asked.run(str(link)).exit_code == 0
    assert (asked[-1].script, asked[-1].env.get(SCRIPT_LINK)) == (str(tmp_path / "train.py"), str(link))
    assert SCRIPT_LINK not in asked.train().env
