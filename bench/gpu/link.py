"""What a step costs on a device whose link has a set speed: the simulated one, because no other can be set.

    python bench/gpu/link.py            0.5 GB of state, a link of 2 GB/s; a minute or two
    python bench/gpu/link.py --quick    64 MB, fewer steps

A step keeps the state, computes, and lets an optimizer change all of it. Forward and backward are a stretch of time in
which training's stream does nothing else and the host waits for the loss; no processor is busy with them, as none is
while a GPU computes. They are 2 and 0.5 times as long as the copy, which is measured first. Every other step keeps
nothing; neighbours are compared.

- keep ms: the host's time in `keep`.
- longer ms, longer %: the median of what a step with a checkpoint takes more than its neighbour, with its standard
  error; `expected` is what must be waited for: the copy less forward and backward, if it is longer.

The device is simulated: its copies and its optimizer take this machine's processors. So this shows who waits for what
and how long the host is blocked, not what a GPU reaches. docs/gpu.md has figures.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from device import GB, SIMULATED, Part, Parts, arguments, described, median_s, use
from keeping import Keeping, kept
from killed_rank import Numbering
from report import median, tell
from show import show
from turns import standard_error

from holdfast.trainer.device.guards import SIZES
from tests import accelerator

TENSOR_BYTES = 8_000_000


class Sizes(NamedTuple):
    nbytes: int
    link: float
    """Bytes in a second."""
    pairs: int
    ratios: tuple[float, ...] = (2.0, 0.5)
    """Forward and backward, in lengths of the copy."""


FULL = Sizes(GB // 2, 2e9, pairs=25)
QUICK = Sizes(64_000_000, 2e9, pairs=4)


class Step(NamedTuple):
    whole_s: float
    keep_s: float
    """0: it kept nothing."""


class Training:
    """A state that an optimizer changes, and a stretch of time."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        count = max(1, nbytes // TENSOR_BYTES)
        self.parameters = [torch.nn.Parameter(torch.zeros(TENSOR_BYTES // 4, device=device)) for _ in range(count)]
        self.optimizer = Numbering(list(self.parameters), 0)
        self.activation = torch.zeros(1, device=device)

    def copied_s(self) -> float:
        """Return how long the copies alone take: somewhat longer than the link's speed allows."""
        targets = [torch.zeros_like(it, device="cpu").pin_memory() for it in self.parameters]

        def copy() -> None:
            for source, target in zip(self.parameters, targets, strict=True):
                target.copy_(source.detach(), non_blocking=True)

        return median_s(copy, 3)

    def step(self, compute_s: float, keeping: Keeping | None) -> Step:
        stream = torch.accelerator.current_stream()
        began = time.perf_counter()
        if keeping is not None:
            is_kept = keeping.keep(self.optimizer.done, lambda: {"parameters": self.parameters})
            assert is_kept, "the step before was sealed, so this one is not skipped"
        called = time.perf_counter()
        with accelerator.held(stream):
            self.activation.add_(1.0)
            time.sleep(compute_s)
        stream.synchronize()
        # Its hook has the device wait for the copies.
        self.optimizer.step()
        stream.synchronize()
        return Step(time.perf_counter() - began, called - began if keeping is not None else 0.0)


def measure(training: Training, sizes: Sizes, parts: Parts) -> list[dict[str, Any]]:
    accelerator.bandwidth(sizes.link)
    copy_s = training.copied_s()
    rows = list[dict[str, Any]]()
    with kept("gate", SIZES) as keeping:
        training.optimizer.step()
        if not keeping.until_ready(lambda: training.step(0.0, keeping)):
            raise RuntimeError("the vault's memory is not pinned: see registration.py")
        for ratio in sizes.ratios:
            pairs = list[tuple[Step, Step]]()
            for number in range(sizes.pairs):
                if parts.left_s < 0:
                    break
                found = dict[bool, Step]()
                for is_kept in (True, False) if number % 2 else (False, True):
                    found[is_kept] = training.step(ratio * copy_s, keeping if is_kept else None)
                    keeping.wait_sealed()
                pairs.append((found[True], found[False]))
            tell(f"  forward and backward are {ratio:g} times as long as the copy")
            rows.append(_row(copy_s, ratio, pairs))
    return rows


def _row(copy_s: float, ratio: float, pairs: list[tuple[Step, Step]]) -> dict[str, Any]:
    longer = [1000 * (one.whole_s - other.whole_s) for one, other in pairs]
    in_keep = [1000 * one.keep_s for one, _ in pairs]
    step_ms = 1000 * statistics.median(other.whole_s for _, other in pairs)
    return {
        "copy_ms": 1000 * copy_s,
        "compute_ms": 1000 * copy_s * ratio,
        "step_ms": step_ms,
        "longer_ms": median(longer),
        "error_ms": standard_error(longer),
        "longer_%": 100 * statistics.median(longer) / step_ms,
        "expected_ms": 1000 * max(0.0, copy_s * (1 - ratio)),
        "keep_ms": median(in_keep),
        "keep_max_ms": max(in_keep),
        "pairs": len(pairs),
    }


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    if args.device not in (None, SIMULATED):
        raise SystemExit("only the simulated device has a link whose speed can be set")
    device = use(SIMULATED)
    sizes = QUICK if args.quick else FULL
    here, results = described(device), Parts(args.only)
    training = Training(sizes.nbytes, device)
    part = Part("link", "steps beside a link of a set speed", lambda: measure(training, sizes, results))
    results.run(part)
    show("gpu/link", here | {"state_gb": sizes.nbytes / GB}, [part], results)


if __name__ == "__main__":
    main()
