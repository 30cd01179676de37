"""DDP's collectives are called from C++; their times are in the ring all the same."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.warm_python import WARM_RANKS, run_warm

HERE = Path(__file__).parent


def test_who_waits_in_ddps_buckets_is_in_the_ring(tmp_path: Path) -> None:
    run_warm([sys.executable, WARM_RANKS, 2, HERE / "ddp_rank.py", tmp_path], timeout=100)
