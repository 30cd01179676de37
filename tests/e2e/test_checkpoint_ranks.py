"""Checkpoints of several ranks: sharded, deduplicated, agreed upon, resharded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WARM_RANKS = Path(__file__).parents[1] / "warm_ranks.py"
WORKER = Path(__file__).with_name("checkpoint_worker.py")


def run_worker(ranks: int, what: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, WARM_RANKS, str(ranks), WORKER, what, directory],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_ranks_agree_on_what_is_saved_and_restored_and_dtensors_reshard(tmp_path: Path) -> None:
    run_worker(4, "save", tmp_path)
    run_worker(2, "reshard", tmp_path)
