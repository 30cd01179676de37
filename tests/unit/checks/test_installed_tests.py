"""Custom stop-time tests of an installed package are found by their entry point and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engines.checks.suites import Stage
from holdfast_checks.node_tests import plugins
from holdfast_checks.result import StageTask, WorkerContext
from tests.scenes.installed_package import install

SOURCE = """
def burn():
    return "burnt"

def lamp():
    assert False, "lamp 3 is dark"
"""


def test_an_installed_package_adds_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "rack_diagnostics", SOURCE, {"holdfast.diagnostics": {"burn": "burn", "lamp": "lamp"}})
    monkeypatch.syspath_prepend(tmp_path)
    context = WorkerContext(run="r", node="n", node_rank=0, nodes=1)
    found = plugins.run(StageTask(context=context, stage=Stage(test="plugins", limit_s=1.0)), lambda: None)
    assert {finding.device: (finding.status, finding.detail) for finding in found} == {
        "burn": ("passed", "burnt"),
        "lamp": ("failed", "lamp 3 is dark"),
    }
