"""DDP's collectives are called from C++; their times are in the ring all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_who_waits_in_ddps_buckets_is_in_the_ring(tmp_path: Path) -> None:
    launcher = HERE.parent / "warm_ranks.py"
    command = (sys.executable, str(launcher), "2", str(HERE / "ddp_rank.py"), str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
