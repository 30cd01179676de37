"""Today's policy has no complaint in the proving ground but the known ones, and the oracle none at all."""

from __future__ import annotations

import pytest

from holdfast_proving.judging.complaints import Wrong
from holdfast_proving.judging.trial import OF_GROUPS, OF_THE_ANALYZER, TRIALS, complaints, new_complaints
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import TODAY
from holdfast_proving.scenario.load import load_scenario, shipped

SEEDS = range(1, 4)
KNOWN = [name for name in shipped() if name.startswith("known-")]
MENDED = ("overtaken", "byterobust-figure-7", "byterobust-section-5-2", "byterobust-section-9")
"""Stories that went wrong once, and tell too little of the policies to be a trial."""


@pytest.mark.parametrize("scenario", [*TRIALS, *OF_THE_ANALYZER, *OF_GROUPS, *MENDED])
@pytest.mark.parametrize("seed", SEEDS)
def test_todays_policy_passes_the_trials(scenario: str, seed: int) -> None:
    assert new_complaints(TODAY, scenario, seed) == []


@pytest.mark.parametrize("scenario", [*TRIALS, *OF_THE_ANALYZER, *KNOWN])
def test_nothing_is_wrong_with_the_oracle(scenario: str) -> None:
    """What a judge says of the oracle would be wrong of the judge."""
    assert complaints(ORACLE, scenario, 1) == []


@pytest.mark.parametrize("scenario", ["storm", *KNOWN])
def test_what_is_known_to_be_wrong_is_wrong(scenario: str) -> None:
    """Expected failures of today's policy: a change that mends one takes it out of the scenario's `known_wrong`."""
    known = load_scenario(scenario).known_wrong
    for seed in SEEDS:
        found = {complaint.wrong for complaint in complaints(TODAY, scenario, seed)}
        assert found == {Wrong(name) for name in known}, f"seed {seed}"
