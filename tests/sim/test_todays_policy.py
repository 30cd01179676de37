"""Today's policy has no complaint in the proving ground but the known ones, and the oracle none at all."""

from __future__ import annotations

import os
from itertools import product

import pytest

from holdfast_proving.judging.complaints import Wrong
from holdfast_proving.judging.trial import (
    OF_GROUPS,
    OF_HINTS,
    OF_OFFENDERS,
    OF_RECORDS,
    OF_SILENCES,
    OF_THE_ANALYZER,
    OF_WARM_UPS,
    TRIALS,
    complaints,
    first_complaints,
)
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import TODAY
from holdfast_proving.scenario.load import load_scenario, shipped

SEEDS = range(1, 4 if "HOLDFAST_LONG" in os.environ else 2)
"""The first is enough for every wrong policy to be noticed in it (test_wrong_policies.py)."""
KNOWN = [name for name in shipped() if name.startswith("known-")]
MENDED = ("numbers-again", "overtaken", "byterobust-figure-7", "byterobust-section-5-2", "byterobust-section-9")
"""Stories that went wrong once, and tell too little of the policies to be a trial."""
TOLD = (
    *TRIALS,
    *OF_THE_ANALYZER,
    *OF_GROUPS,
    *OF_HINTS,
    *OF_RECORDS,
    *OF_OFFENDERS,
    *OF_WARM_UPS,
    *OF_SILENCES,
    *MENDED,
)
BY_CHANCE = {"slowness": 2, "stranger": 1}
"""Scenarios whose faults come at random, with a seed in which today's policy meets all that is known to be wrong."""


@pytest.mark.parametrize(("seed", "scenario"), [*product(SEEDS, TOLD), (1, "false-alarms")])
def test_todays_policy_passes_the_trials(seed: int, scenario: str) -> None:
    assert first_complaints(TODAY, scenario, seed) == []


@pytest.mark.parametrize("scenario", [*TRIALS, *OF_THE_ANALYZER, *OF_HINTS, *OF_OFFENDERS, *OF_SILENCES, *KNOWN])
def test_nothing_is_wrong_with_the_oracle(scenario: str) -> None:
    """What a judge says of the oracle would be wrong of the judge."""
    assert complaints(ORACLE, scenario, 1) == []


@pytest.mark.parametrize("scenario", [*KNOWN, *BY_CHANCE])
def test_what_is_known_to_be_wrong_is_wrong(scenario: str) -> None:
    """Expected failures of today's policy: a change that mends one takes it out of the scenario's `known_wrong`."""
    known = load_scenario(scenario).known_wrong
    for seed in (BY_CHANCE[scenario],) if scenario in BY_CHANCE else SEEDS:
        found = {complaint.wrong for complaint in complaints(TODAY, scenario, seed)}
        assert found == {Wrong(name) for name in known}, f"seed {seed}"


def test_each_known_wrong_is_asked_for() -> None:
    """A mark that no test asks for would stay when it no longer holds: long scenarios have marks of short ones."""
    asked = {wrong for name in (*KNOWN, *BY_CHANCE) for wrong in load_scenario(name).known_wrong}
    assert {wrong for name in shipped() for wrong in load_scenario(name).known_wrong} <= asked
