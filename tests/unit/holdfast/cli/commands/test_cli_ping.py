"""`holdfast ping` where nothing answers: one line, exit code 1."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import main


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "no cluster here"),
        ({"HOLDFAST_NATS_URL": "nonsense://"}, "'nonsense://' is not an address of NATS"),
        ({"HOLDFAST_NATS_URL": "nats://127.0.0.1:1"}, "controller does not answer"),
    ],
    ids=["none", "nonsense", "silent"],
)
def test_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["ping", "controller", "--timeout-s", "0.2"], env=environment)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert said in line


def test_what_never_answers_is_waited_for_until_the_time_is_over() -> None:
    environment = {"HOLDFAST_NATS_URL": "nats://127.0.0.1:1"}
    result = CliRunner().invoke(main, ["ping", "controller", "--wait", "--timeout-s", "1.5"], env=environment)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("Error: controller does not answer within 1.5 s")
