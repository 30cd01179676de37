"""A job's pace in a few words."""

from __future__ import annotations

import pytest

from holdfast.cli.output.pace import pace_text


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        ((None, None, None), None),
        ((0.1634, None, None), "0.163 s/step"),
        ((12.0, 1_234_567.0, 0.4123), "12 s/step, 1.23M tokens/s, MFU 41.2 %"),
        ((None, 950.0, None), "950 tokens/s"),
        ((0.5, 45_300.0, None), "0.5 s/step, 45.3k tokens/s"),
        ((0.5, 2.5e9, None), "0.5 s/step, 2.5G tokens/s"),
    ],
)
def test_what_is_known_is_said(pace: tuple[float | None, float | None, float | None], expected: str | None) -> None:
    assert pace_text(*pace) == expected
