"""Every wrong policy is noticed in the proving ground, and today's has no complaint but the known ones.

`holdfast_proving/policies/wrong.py` lists them; a new rung of the ladder brings its own.
"""

from __future__ import annotations

import pytest

from holdfast_proving.judging.complaints import Wrong
from holdfast_proving.judging.trial import TRIALS, caught, complaints, new_complaints
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import TODAY, Policy
from holdfast_proving.policies.wrong import WRONG
from holdfast_proving.scenario.load import load_scenario, shipped

SEEDS = range(1, 4)
KNOWN = [name for name in shipped() if name.startswith("known-")]


@pytest.mark.parametrize("policy", WRONG, ids=lambda policy: policy.name)
def test_a_wrong_policy_is_noticed(policy: Policy) -> None:
    assert caught(policy, SEEDS) is not None, f"nothing shows that this is wrong: {policy.about}"


@pytest.mark.parametrize("scenario", TRIALS)
@pytest.mark.parametrize("seed", SEEDS)
def test_todays_policy_passes_the_trials(scenario: str, seed: int) -> None:
    assert new_complaints(TODAY, scenario, seed) == []


@pytest.mark.parametrize("scenario", [*TRIALS, *KNOWN])
def test_nothing_is_wrong_with_the_oracle(scenario: str) -> None:
    """What a judge says of the oracle would be wrong of the judge."""
    assert new_complaints(ORACLE, scenario, 1) == []


@pytest.mark.parametrize("scenario", ["storm", *KNOWN])
def test_what_is_known_to_be_wrong_is_wrong(scenario: str) -> None:
    """Expected failures of today's policy: a change that mends one takes it out of the scenario's `known_wrong`."""
    known = load_scenario(scenario).known_wrong
    for seed in SEEDS:
        found = {complaint.wrong for complaint in complaints(TODAY, scenario, seed)}
        assert found == {Wrong(name) for name in known}, f"seed {seed}"
