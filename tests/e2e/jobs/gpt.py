"""The GPT example as it is; every rank notes the loss of each completed step, to the bit, as `fold.py` its state.

While `--gate` exists, it completes no step after the one that is written there.
"""

from __future__ import annotations

import argparse
import os
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Any

from fold import last_open

from holdfast import trainer

TRAIN = Path(__file__).parents[3] / "examples" / "gpt" / "train.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True, help="directory")
    parser.add_argument("--gate", type=Path, required=True)
    args, rest = parser.parse_known_args()
    journal = os.open(args.journal / f"rank-{os.environ['RANK']}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    say = trainer.step

    def step(number: int, *, loss: float, **more: Any) -> None:
        while number > last_open(args.gate):
            time.sleep(0.005)
        say(number, loss=loss, **more)
        (bits,) = struct.unpack("q", struct.pack("d", loss))
        generation = os.environ.get("HOLDFAST_GENERATION", "0")
        os.write(journal, f"{generation} {number} {os.getpid()} {bits}\n".encode())

    trainer.step = step  # type: ignore[assignment]
    sys.argv = [str(TRAIN), *rest]
    sys.path.insert(0, str(TRAIN.parent))
    runpy.run_path(str(TRAIN), run_name="__main__")


if __name__ == "__main__":
    main()
