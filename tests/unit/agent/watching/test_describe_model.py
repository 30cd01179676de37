"""What a script says of its model once, and how its agent understands it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import trainer
from holdfast.trainer.model import UnusableModel
from holdfast_agent.watching.reports import ModelDescription, RankReport, ReportFile, described_model


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportFile:
    path = tmp_path / "reports.jsonl"
    monkeypatch.setenv("HOLDFAST_REPORTS", str(path))
    return ReportFile(path, 0)


def has_device(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: name is not None, get_device_name=lambda: name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", None, 989e12),
        ("NVIDIA H100 80GB HBM3", 5e14, 5e14),
        ("Other", None, None),
        (None, None, None),
    ],
)
def test_the_peak_is_what_is_said_or_what_the_device_has(
    reports: ReportFile,
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    given: float | None,
    expected: float | None,
) -> None:
    has_device(monkeypatch, device)
    trainer.describe_model(flops_per_token=6 * 7_000_000_000, peak_flops=given)
    (report,) = reports.read()
    assert described_model(report) == ModelDescription(flops_per_token=4.2e10, peak_flops=expected)


@pytest.mark.parametrize("flops", [0.0, -1.0, math.nan, math.inf])
def test_numbers_that_no_model_has_are_refused(flops: float) -> None:
    with pytest.raises(UnusableModel, match="give a number above 0"):
        trainer.describe_model(flops_per_token=flops)
    with pytest.raises(UnusableModel, match="give a number above 0"):
        trainer.describe_model(flops_per_token=1e9, peak_flops=flops)


def test_outside_holdfast_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_REPORTS", raising=False)
    trainer.describe_model(flops_per_token=1e9)


@pytest.mark.parametrize(
    "fields", [{}, {"flops_per_token": "many"}, {"flops_per_token": -1.0}, {"flops_per_token": 1.0, "peak_flops": 0.0}]
)
def test_a_report_that_makes_no_sense_is_left_alone(fields: dict[str, str | float]) -> None:
    assert described_model(RankReport(kind="model", at_ns=1, rank=0, generation=1, fields=fields)) is None
    assert described_model(RankReport(kind="other", at_ns=1, rank=0, generation=1)) is None
