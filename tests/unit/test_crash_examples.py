"""Every example of a crash gets the answer that is right: provoked ones, and those written after known formats."""

import re

import pytest

from holdfast.crash import Diagnosis
from tests.crash_examples.cases import Case, cases, diagnosed, told

CASES = cases("provoked", "written", "held_out")
ANSWERS: dict[str, Diagnosis] = {}


def answer(case: Case) -> Diagnosis:
    if case.name not in ANSWERS:
        ANSWERS[case.name] = diagnosed(case)
    return ANSWERS[case.name]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_right_answer(case: Case) -> None:
    assert told(answer(case), case.expected) == case.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_evidence_is_in_the_logs(case: Case) -> None:
    for one in answer(case).evidence:
        if one.file in case.logs:
            said = re.sub(r"\x1b\[[0-9;]*m", "", case.logs[one.file].split("\n")[one.line - 1])
            assert one.text.removesuffix("...").strip()[-80:] in said


def test_there_are_enough_and_most_are_provoked() -> None:
    assert len(cases("provoked")) >= 100


def test_the_answer_does_not_depend_on_the_order_of_the_logs() -> None:
    for case in CASES:
        turned = Case(
            name=case.name,
            expected=case.expected,
            exit_codes=case.exit_codes,
            logs=dict(reversed(list(case.logs.items()))),
        )
        assert told(diagnosed(turned), case.expected) == case.expected, case.name
