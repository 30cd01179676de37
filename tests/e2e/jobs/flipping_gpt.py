"""The GPT example on nodes of which one computes wrongly: now and then a bit of a gradient is another there.

The fault is the node's, whichever rank it runs and whatever for: `--bad-node FILE` has its name, once it is there. A
rank completes no step of training after the one that is written in `--gate`. Nothing clips gradients, and plain
gradient descent follows them, so what goes wrong is not hidden.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fold import last_open

from holdfast import trainer

EXPONENT_BIT = 30
SHARE = 0.5
"""Of its steps, those at which it goes wrong; which ones is another matter each time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="the example's script")
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--bad-node", type=Path, required=True)
    args, rest = parser.parse_known_args()
    sys.path.insert(0, str(args.train.parent))
    import gradients

    gradients.CLIP_NORM = float("inf")
    finish, say, chance = gradients.Gradients.finish, trainer.step, random.SystemRandom()

    def flipping_finish(self: Any, loss: float) -> tuple[float, float]:
        if is_here(args.bad_node) and chance.random() < SHARE:
            place = int(self._flat.abs().argmax())
            self._flat.view(torch.int32)[place] ^= 1 << EXPONENT_BIT
        result: tuple[float, float] = finish(self, loss)
        return result

    def step(number: int, **numbers: Any) -> None:
        while trainer.replay() is None and number > last_open(args.gate):
            time.sleep(0.005)
        say(number, **numbers)

    gradients.Gradients.finish = flipping_finish
    trainer.step = step  # type: ignore[assignment]
    torch.optim.AdamW = lambda parameters, lr, fused: torch.optim.SGD(parameters, lr)  # type: ignore[assignment,misc]
    sys.argv = [str(args.train), *rest]
    runpy.run_path(str(args.train), run_name="__main__")


def is_here(bad_node: Path) -> bool:
    try:
        return bad_node.read_text() == os.environ["HOLDFAST_NODE"]
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
