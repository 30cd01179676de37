"""A script whose disk takes a save only when a gate is gone: held_save.py GATE DIRECTORY STEPS EVERY"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.trainer.write_behind import disk_writes

GATE = sys.argv[1]
publish = disk_writes.publish


def held(*args: Any) -> Any:
    while os.path.exists(GATE):
        time.sleep(0.01)
    return publish(*args)


disk_writes.publish = held  # type: ignore[assignment]
sys.argv = ["saves.py", "torch", *sys.argv[2:]]
runpy.run_path(str(Path(__file__).with_name("saves.py")), run_name="__main__")
