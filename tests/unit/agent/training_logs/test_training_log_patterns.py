"""Patterns find what `glob` finds, and come to an end in any directory that a job can make."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from holdfast.node.trees import remove_tree
from holdfast_agent.training_logs.open_files import matching_logs
from holdfast_agent.training_logs.patterns import matching
from tests.scenes.nested_directories import make_deep

FILES = (
    "a.wandb",
    "logs/b.wandb",
    "logs/x/y/c.wandb",
    "logs/x/.d.wandb",
    ".hidden/e.wandb",
    "logs/[f].wandb",
    "other/g",
)


PATTERNS = (
    *("*.wandb", "**/*.wandb", "logs/**/*.wandb", "l*/x/**/c.wandb", "logs/b.wandb", "./logs/?.wandb", ".h*/*"),
    *("*/nothing", "**/x/**/*.wandb", "logs/x/y/../../b.wandb", "linked/**/*.wandb", "logs/[[]f].wandb"),
    "logs/x/.*.wandb",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_they_match_as_before(tmp_path: Path, pattern: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "linked").symlink_to("logs")
    expected = {os.path.realpath(path) for path in glob.glob(str(tmp_path / pattern), recursive=True)}
    for found in (matching(pattern, str(tmp_path)), matching(str(tmp_path / pattern), "/elsewhere")):
        assert {os.path.realpath(path) for path in found if os.path.exists(path)} == expected


def test_links_in_a_circle_and_directories_without_end_are_looked_into_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(".")
    (tmp_path / "run.wandb").write_text("")
    make_deep(tmp_path, 1_500)
    found = matching_logs(["**/*.wandb"], str(tmp_path), 3)
    assert [(os.path.basename(log.path), log.rank) for log in found] == [("run.wandb", 3)]
    remove_tree(tmp_path / "deeper")
