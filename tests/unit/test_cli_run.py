"""What `holdfast run` asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import run as command
from holdfast.cli.main import main
from holdfast.event_parts import JobSpec


class Asked(list[JobSpec]):
    """`holdfast run` in a directory with train.py, and the jobs that it asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "train.py").touch()

    def run(self, *arguments: str) -> Result:
        addresses = ["--nats-url", "nats://here", "--database-url", "postgresql://here"]
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

    async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool) -> int:
        specs.append(spec)
        return 0

    monkeypatch.setattr("holdfast.cli.run.follow", follow)
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
    assert "--env RANK: each rank gets its own" in asked.refusal("-e", "RANK=7")
    assert asked.train("-e", "OMP_NUM_THREADS=4").env == {"OMP_NUM_THREADS": "4"}
