"""Every wrong policy is noticed in the proving ground.

`holdfast_proving/policies/wrong.py` lists them; a new rung of the ladder brings its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from holdfast_proving.judging.complaints import Complaint, Wrong
from holdfast_proving.judging.trial import first_complaints as complaints_of
from holdfast_proving.judging.trial import new_complaints, trials_of
from holdfast_proving.policies.named import NAMED
from holdfast_proving.policies.policy import Policy
from holdfast_proving.policies.wrong import WRONG
from holdfast_proving.scenario.load import load_scenario, shipped

SEEDS = range(1, 4)
KNOWN = [name for name in shipped() if name.startswith("known-")]


@cache
def first_complaints(policy: str) -> list[Complaint]:
    """The new complaints about a policy, in the first scenario and seed that has any."""
    histories = ((scenario, seed) for seed in SEEDS for scenario in trials_of(NAMED[policy]))
    found = (complaints_of(NAMED[policy], scenario, seed) for scenario, seed in histories)
    return next((some for some in found if some), [])


@pytest.mark.parametrize("policy", WRONG, ids=lambda policy: policy.name)
def test_a_wrong_policy_is_noticed(policy: Policy) -> None:
    assert first_complaints(policy.name), f"nothing shows that this is wrong: {policy.about}"


def test_every_judge_is_heard() -> None:
    """A complaint that no wrong policy and no known wrong brings about has never been seen to work."""

    def all_kinds() -> Iterator[Wrong]:
        for policy in WRONG:
            yield from (complaint.wrong for complaint in first_complaints(policy.name))
        # Trials are over with the first complaint; bounds are judged at the end.
        yield from (complaint.wrong for complaint in new_complaints(NAMED["never_stops"], "trial", 1))
        for scenario in KNOWN:
            yield from map(Wrong, load_scenario(scenario).known_wrong)

    assert set(all_kinds()) == set(Wrong)
