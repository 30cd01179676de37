"""Checkpoints of several ranks: sharded, deduplicated, agreed upon, resharded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.warm_python import WARM_RANKS, run_warm

WORKER = Path(__file__).with_name("checkpoint_worker.py")


def run_worker(ranks: int, what: str, directory: Path) -> None:
    run_warm([sys.executable, WARM_RANKS, ranks, WORKER, what, directory], timeout=200)


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_ranks_agree_on_what_is_saved_and_restored_and_dtensors_reshard(tmp_path: Path) -> None:
    run_worker(4, "save", tmp_path)
    run_worker(2, "reshard", tmp_path)
