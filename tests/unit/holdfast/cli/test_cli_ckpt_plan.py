"""Shares in percent: a share below one is never shown as 100 %."""

from __future__ import annotations

import pytest

from holdfast.cli.checkpoints.odds import share_text


@pytest.mark.parametrize(
    ("survived", "losses", "text"),
    [
        (4, 4, "100 %"),
        (0, 4, "0.0 %"),
        (1984, 2016, "98.4 %"),
        (779999, 780000, "99.99987 %"),
        (323882898560, 323882960960, "99.999981 %"),
    ],
)
def test_a_share_has_the_digits_that_distinguish_it_from_all(survived: int, losses: int, text: str) -> None:
    assert share_text(survived, losses) == text
