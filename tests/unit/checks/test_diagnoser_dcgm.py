"""What `dcgmi diag --json` prints, in the forms that its releases have given it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast_checks.node_tests.dcgm import UnreadableAnswer, findings, read


def older(*results: dict[str, Any], test: str = "Memory") -> str:
    """DCGM 3 and before."""
    tests = [{"name": test, "results": list(results)}]
    return json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def newer(*results: dict[str, Any], test: str = "eud") -> str:
    """DCGM 4: entities, and a summary of each test."""
    tests = [{"name": test, "results": list(results), "test_summary": {"status": "Fail"}}]
    return "Successfully ran diagnostic.\n" + json.dumps(
        {
            "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]},
            "metadata": {"version": "4"},
        }
    )


def test_all_passed_is_one_finding() -> None:
    (found,) = findings("2", read(older({"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "PASS"})))
    assert (found.status, found.value, found.device) == ("passed", 2.0, "2")


def test_a_failed_device_is_named_with_the_words_of_the_tool() -> None:
    text = older(
        {"gpu_id": "0", "status": "Pass"},
        {"gpu_id": "3", "status": "Fail", "warnings": "A DBE was detected", "info": "see the manual"},
    )
    (found,) = findings("2", read(text))
    assert (found.status, found.device, found.symptom) == ("failed", "GPU 3", "gpu_memory_error")
    assert found.detail == "Memory: A DBE was detected"


def test_a_failed_entity_of_the_newer_form_is_named() -> None:
    error = {"warning": "MODS-000000000143", "error_id": 95, "error_category": 15, "error_severity": 2}
    text = newer({"entity_group": "GPU", "entity_id": 5, "status": "Fail", "warnings": [error]})
    (found,) = findings("eud", read(text))
    assert (found.status, found.device, found.detail) == ("failed", "GPU 5", "eud: MODS-000000000143")


def test_what_the_tool_could_not_run_speaks_against_nobody() -> None:
    error = {"warning": "the EUD binary is not there", "error_id": 96, "error_category": 7, "error_severity": 4}
    text = newer({"entity_group": "GPU", "entity_id": 5, "status": "Fail", "warnings": [error]})
    (found,) = findings("eud", read(text))
    assert (found.status, found.symptom) == ("broken", "")
    assert "the EUD binary is not there" in found.detail


def test_where_all_tests_are_left_out_it_is_skipped() -> None:
    (found,) = findings("eud", read(newer({"entity_group": "GPU", "entity_id": 0, "status": "Skip"})))
    assert found.status == "skipped"


@pytest.mark.parametrize(
    "text", ["", "Error: unable to establish a connection to the host engine", "{}", "{ not JSON }"]
)
def test_what_is_no_result_is_said_to_be_none(text: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read(text)
