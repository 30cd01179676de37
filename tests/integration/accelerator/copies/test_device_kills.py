"""A rank, or its vault, is killed at any moment of a copy from the device: the newest step that can be is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accelerator.build import built
from tests.accelerator.children import BUILD_S, on_accelerator
from tests.integration.vault_process import UNTIL_TORN_DOWN, vault

pytestmark = on_accelerator

LONG = "HOLDFAST_LONG" in os.environ
LONG_S = 1800
PROGRAM = Path(__file__).with_name("killed_ranks.py")
ROOT = Path(__file__).parents[4]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with vault(tmp_path, *UNTIL_TORN_DOWN) as it:
        yield it


def kills(what: str, directory: Path, count: int) -> list[dict[str, object]]:
    built()
    command = [sys.executable, PROGRAM, what, directory, str(count), "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) == count
    return found


@pytest.mark.timeout(LONG_S if LONG else BUILD_S)
def test_a_rank_is_killed(directory: Path) -> None:
    for it in kills("rank", directory, 200 if LONG else 10):
        assert it["values"] == [it["restored"]], it
        # A step that it had asked for may have been sealed before it could see the answer.
        assert it["restored"] in (it["sealed"], it["asked"]), it


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_its_vault_is_killed(directory: Path) -> None:
    for it in kills("vault", directory, 200):
        assert it["values"] == [it["restored"]], it
        assert it["restored"] >= it["sealed"], it  # type: ignore[operator]
