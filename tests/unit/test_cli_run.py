"""What `holdfast run` asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import run as command
from holdfast.cli.main import main
from holdfast.event_parts import JobSpec


def test_every_job_gets_a_token_of_its_own_and_no_flag_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[JobSpec] = []

    async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool) -> int:
        asked.append(spec)
        return 0

    monkeypatch.setattr("holdfast.cli.run.follow", follow)
    script = tmp_path / "train.py"
    script.touch()
    addresses = ["--nats-url", "nats://here", "--database-url", "postgresql://here"]
    for _ in range(2):
        result = CliRunner().invoke(main, ["run", "--dir", str(tmp_path), *addresses, str(script)])
        assert result.exit_code == 0, result.output
        assert asked[-1].token not in result.output
    first, second = (spec.token for spec in asked)
    assert first != second and min(len(first), len(second)) >= 32
    assert not any("token" in option.name for option in command.run.params if option.name)
