"""A rank with a Python of its own."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.node.forks import EXIT_SETUP_FAILED
from holdfast_agent.zygote import fork_rank
from tests.unit.agent.zygote.test_copy_file import Launch, plans


def test_one_that_cannot_be_started_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text("not executable")
    plan = msgspec.structs.replace(plans(tmp_path, Launch())[0], python=str(python))
    child = os.fork()
    if not child:
        fork_rank._execute(plan)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_SETUP_FAILED
    shown = capfd.readouterr().err
    assert f"{python} cannot be started (Permission denied)" in shown and "Traceback" not in shown
