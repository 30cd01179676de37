"""One place knows all names of symptoms, and who gives one takes it from there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.engines.checks.suites import SUITES, suite_for
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.hardware.kernel_rules import RULES as KERNEL_RULES
from holdfast.symptoms.rows import ROWS, row_of
from holdfast.symptoms.table_one import TableOne
from holdfast_controller.plan.incident.incident import Symptom

REPOSITORY = Path(__file__).parents[4]


def test_whatever_the_controller_or_a_rule_names_is_known() -> None:
    named = {*Symptom, *(one.rule.symptom for one in rule_book().compiled), *(rule.symptom for rule in KERNEL_RULES)}
    assert named - ROWS.keys() == set()


def test_stop_time_checks_make_up_no_names_of_their_own() -> None:
    files = list((REPOSITORY / "agent/holdfast_checks").rglob("*.py"))
    assert any(file.name == "gemm.py" for file in files)
    for file in files:
        literal = re.findall(r'(?:SYMPTOMS? = |symptom=|failed\()"([a-z_]+)"', file.read_text())
        assert set(literal) <= ROWS.keys(), file


@pytest.mark.parametrize(
    ("symptom", "row"),
    [
        ("ecc_error", TableOne.GPU_MEMORY_ERROR),
        ("silent_data_corruption", TableOne.NAN_VALUE),
        ("node_lost", TableOne.OS_KERNEL_PANIC),
        ("disk_fault", TableOne.DISK_FAULT),
        ("killed_by_signal", ""),
        ("of a later version", ""),
    ],
)
def test_the_row_above_a_name(symptom: str, row: str) -> None:
    assert row_of(symptom) == row


@pytest.mark.parametrize(
    ("symptom", "suite"),
    [
        ("nan", "nan"),
        ("silent_data_corruption", "nan"),
        ("ecc_error", "gpu"),
        ("nccl_timeout", "network"),
        ("peer_lost", "network"),
        ("killed_by_signal", "full"),
        ("of a later version", "full"),
    ],
)
def test_a_finer_name_is_looked_for_as_its_row_is(symptom: str, suite: str) -> None:
    assert suite_for(symptom) == suite in SUITES
