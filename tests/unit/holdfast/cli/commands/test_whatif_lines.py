"""What `holdfast whatif` prints of decisions that differ."""

from __future__ import annotations

from holdfast.cli.commands.history.whatif import _difference

STARTED = {"type": "generation_started", "what": "generation 2 on node-0"}


def test_decisions_with_the_same_text_are_shown_though_they_differ() -> None:
    """A record of an earlier version lacks fields that no text has: that is not nothing."""
    difference = {"cause": None, "at": "2026-11-29T14:46:50.773", "recorded": [STARTED], "reproduced": [STARTED]}
    assert _difference(difference, "recorded", "reproduced") == [
        "2026-11-29 14:46:50.773 time passed",
        "  both: generation_started: generation 2 on node-0",
        "  They differ in other fields.",
    ]
