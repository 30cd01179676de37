"""Frameworks that save in their own way, through a real vault: killed after a save, they go on as without a kill."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from vault_process import Ranks, vault

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("write_behind_frameworks.py")


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_framework_goes_on_from_its_newest_save_and_leaves_the_same_files(tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    expected, there = _losses_and_files(tmp_path / "undisturbed", framework)
    losses, files = _losses_and_files(tmp_path / "killed", framework, kill_at=20)
    # The step that was begun when it was killed is trained once more, and no other.
    assert losses == expected
    assert files == there


def _losses_and_files(place: Path, framework: str, kill_at: int = 0) -> tuple[list[str], list[str]]:
    place.mkdir()
    with vault(place):
        generation = 1
        if kill_at:
            with Ranks(SCRIPT, [str(place), framework, "kill", str(kill_at)], place, size=1) as rank:
                assert rank._process.wait() != 0
            generation = 2
        with Ranks(SCRIPT, [str(place), framework], place, size=1, generation=generation) as rank:
            (said,) = rank.finished()
    # Its saves did go through memory.
    assert "kept 0" not in said and any(line.startswith("kept ") for line in said), said
    return (place / "losses").read_text().splitlines(), [line for line in said if line.startswith("done")]
