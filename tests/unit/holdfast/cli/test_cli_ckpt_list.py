"""What `holdfast ckpt ls` makes of numbers in manifests, which are their author's."""

from __future__ import annotations

import pytest

from holdfast.cli.checkpoints.ckpt_locations import _moment


@pytest.mark.parametrize("seconds", [1e308, -1e308, float(2**62), 1e13, float("nan"), None])
def test_a_checkpoint_that_was_saved_at_no_time_is_listed_without_one(seconds: float | None) -> None:
    assert _moment(seconds) is None
