"""Custom inspections of an installed package are found by their entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.plugins import entry_point_checks
from tests.scenes.installed_package import install

SOURCE = """
from holdfast_agent.inspections.check import Check, Reading

def fans(policy):
    return Check(name="fans", source="/sys/class/hwmon", read=lambda: Reading(seen={"": "3 fans"}), interval_s=7.0)
"""


def test_an_installed_package_adds_an_inspection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "rack_inspections", SOURCE, {"holdfast.inspections": {"fans": "fans"}})
    monkeypatch.syspath_prepend(tmp_path)
    (check,) = entry_point_checks(InspectionPolicy())
    assert (check.name, check.interval_s) == ("fans", 7.0)
    assert check.read().seen == {"": "3 fans"}
