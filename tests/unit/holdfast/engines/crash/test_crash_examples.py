"""Every example of a crash gets the answer that is right: provoked ones, and those written after known formats."""

import random
import re

import pytest

from holdfast.engines.crash import Diagnosis
from holdfast.symptoms import Symptom
from tests.crash_examples.cases import Case, cases, diagnosed, told

CASES = cases("provoked", "written", "held_out")
PREFIXES = ("", "", "[rank2]: ", "3: ", "[default1]:")
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
            said += said.replace(r"\"", '"').replace(r"\u003c", "<").replace(r"\u003e", ">")  # A record in JSON.
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


@pytest.mark.parametrize("seed", range(40))
def test_no_mixture_of_lines_breaks_it(seed: int) -> None:
    chance = random.Random(seed)
    lines = [line for case in CASES for text in case.logs.values() for line in text.split("\n")]
    logs = {
        name: "\n".join(chance.choice(PREFIXES) + line for line in chance.sample(lines, 80))
        for name in chance.sample(["rank-0.err", "rank-1.out", "train.log", "attempt_0/3/stderr.log", "dmesg.log"], 3)
    }
    codes = {chance.randrange(5): chance.choice([0, 1, -6, -9, -11, 137, 143]) for _ in range(3)}
    said = diagnosed(Case(name="mixture", expected={}, exit_codes=codes, logs=logs))
    assert 0 <= said.confidence <= 1 and (said.symptom != Symptom.UNKNOWN or said.first_rank is None)
