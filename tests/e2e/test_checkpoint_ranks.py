"""Checkpoints of several ranks: sharded, deduplicated, agreed upon, resharded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("checkpoint_worker.py")


def run_worker(ranks: int, what: str, directory: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            WORKER,
            what,
            str(directory),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
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
