"""Policies are found by their names."""

import pytest

from holdfast_proving.policies.named import by_name
from holdfast_proving.policies.policy import TODAY, Policy


def test_two_policies_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="two policies have the name today"):
        by_name((TODAY, Policy(name="today", about="another one")))
