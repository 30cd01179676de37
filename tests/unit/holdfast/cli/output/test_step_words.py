"""Where numbers of steps come from, in words, with and without a name for it."""

from __future__ import annotations

import pytest

from holdfast.cli.output.step_words import steps_from


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("optimizer", "", "counted optimizer steps of this generation"),
        (
            "optimizer",
            "the optimizer keeps no count",
            "counted optimizer steps of this generation (the optimizer keeps no count)",
        ),
        ("framework", "transformers", "as transformers counts them"),
        ("restored", "", "counted optimizer steps, from the number in what was restored"),
        (None, None, ""),
    ],
)
def test_the_source_of_steps_in_words(source: str | None, name: str | None, words: str) -> None:
    assert steps_from(source, name) == words
