"""A rank reports the device of its weights after three steps, with what its script had to set before it used it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from holdfast.trainer.ahead import device_used
from holdfast.trainer.ahead.context import context_works
from holdfast.trainer.hooks import kernel_starts


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_REPORTS", str(tmp_path / "reports"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "reports"


def optimizer(device: str) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, device=device))])


def test_a_rank_on_the_cpu_reports_nothing(reports: Path) -> None:
    device_used.begin()
    for _ in range(2 * device_used.STEPS):
        device_used.stepped(optimizer("cpu"))
    assert not reports.exists()


def test_the_third_step_reports_the_device_and_what_the_script_has_set(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_used.begin()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for name in ("MY_OWN", "CUDA_HOME", "TORCH_NCCL_DESYNC_DEBUG"):
        monkeypatch.setenv(name, "1")
    # What Holdfast's own hook sets when process groups are made.
    variables: dict[str, str] = {}
    kernel_starts.choose(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for _ in range(device_used.STEPS - 1):
        device_used.stepped(optimizer("meta"))
    assert not reports.exists()
    for _ in range(3):
        device_used.stepped(optimizer("meta"))
    [line] = reports.read_text().split()
    report = json.loads(line)
    assert (report["kind"], report["fields"]["device"]) == ("device_used", "meta")
    assert report["fields"]["changed"] == ["CUDA_VISIBLE_DEVICES"]


def test_a_device_that_is_gone_is_no_context(capsys: pytest.CaptureFixture[str]) -> None:
    assert context_works("cpu")
    assert not context_works("xpu:0")
    assert "starts without" in capsys.readouterr().err
