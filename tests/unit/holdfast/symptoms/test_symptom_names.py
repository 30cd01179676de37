"""One place knows all names of symptoms, and who gives one takes it from there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.engines.checks.suites import SUITES, suite_for
from holdfast.engines.hardware.kernel_rules import RULES as KERNEL_RULES
from holdfast.symptoms import TABLE_ONE, Symptom, row_of

REPOSITORY = Path(__file__).parents[4]


def test_every_row_is_one_of_table_one() -> None:
    assert len(TABLE_ONE) == 17
    assert {symptom.row for symptom in Symptom} == {*TABLE_ONE, ""}


def test_every_symptom_of_a_kernel_rule_is_known() -> None:
    assert {rule.symptom for rule in KERNEL_RULES} <= set(Symptom)


def test_stop_time_checks_make_up_no_names_of_their_own() -> None:
    files = list((REPOSITORY / "agent/holdfast_checks").rglob("*.py"))
    assert any(file.name == "gemm.py" for file in files)
    for file in files:
        literal = re.findall(r'(?:SYMPTOMS? = |symptom=|failed\()"([a-z_]+)"', file.read_text())
        assert set(literal) <= set(Symptom), file


@pytest.mark.parametrize(
    ("symptom", "row"),
    [
        ("ecc_error", Symptom.GPU_MEMORY_ERROR),
        ("silent_data_corruption", Symptom.NAN_VALUE),
        ("node_lost", Symptom.OS_KERNEL_PANIC),
        ("disk_fault", Symptom.DISK_FAULT),
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
