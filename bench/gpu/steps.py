"""Steps with checkpoints and without, in turns, and whether they come back to the bit: command plan B.

    python bench/gpu/steps.py                 1.3 B parameters where they fit; under ten minutes
    python bench/gpu/steps.py --quick         a smaller model, fewer steps
    python bench/gpu/steps.py --device sim    how it runs, on the test accelerator; no figures

A GPT (bf16 autocast, fp32 weights and AdamW, fused) trains, and every step is kept in a vault of this machine:

- nothing: no step is kept.
- within: the state is copied within the call, as on a machine without this path.
- gate: as Holdfast does it, copies beside training; the optimizer waits for them on the device.
- shadows: a copy of everything on the device first; no gate.
- no gate: as `gate`, but nothing waits, so steps may be torn: the price of the gate is the difference.

Each block of steps has a vault of its own and begins when its memory is pinned. The host reads each step's loss. `gate
ms` is what the device waits before the optimizer, by its own clock. `kept` of the steps were copied: a rank that is
alone skips a step while the one before is not sealed. The model as FSDP2 of one rank, and compiled, run as `gate` only.

- restores: steps that come back, compared with a copy on the device, bit by bit.
- beside copies: a matrix product alone, and while the link is full.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from device import GB, SIMULATED, Part, Parts, arguments, available_bytes, described, seconds, use
from keeping import SEGMENTS, Keeping, Mode, kept
from model import LARGE, TINY, Gpt, Shape, fitted, state_of
from report import median, percentile, tell
from show import show
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast.node.vault.messages import SealedStep
from holdfast.trainer.device.adapters import free_bytes
from holdfast.trainer.device.guards import SIZES, CopySizes

Kind = Literal["plain", "fsdp2", "compiled"]
ON_DEVICE = 3.5
"""Device memory of a training and of a restore beside it, in sizes of the state."""


class Plan(NamedTuple):
    modes: tuple[Mode, ...]
    rounds: int
    steps: int
    restores: int
    products: int
    sizes: CopySizes


FULL = Plan(("nothing", "within", "gate", "shadows", "no gate"), 2, 30, 5, 400, SIZES)
QUICK = FULL._replace(modes=("nothing", "gate"), steps=20, restores=2, products=100)
SIM = QUICK._replace(modes=FULL.modes, rounds=1, steps=4, products=3, sizes=CopySizes(1 << 10, 24 << 10, 48 << 10))


class Training:
    """A model with an optimizer, one batch, and clocks of the device at the gate."""

    def __init__(self, shape: Shape, device: torch.device, kind: Kind) -> None:
        torch.manual_seed(1)
        self.device = device
        with device:
            model: nn.Module = Gpt(shape)
            self.batch = torch.randint(shape.vocabulary, (shape.batch, shape.tokens))
        if kind == "fsdp2":
            mesh = init_device_mesh(device.type, (1,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.model = model
        self._forward = torch.compile(model) if kind == "compiled" else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.clocks = [torch.Event(device, enable_timing=True) for _ in range(2)]

    def backward(self) -> None:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = self._forward(self.batch)
        loss.backward()
        loss.item()

    def update(self, hold_back: Callable[[], None]) -> None:
        """Let the optimizer step, and note how long the device waits before that."""
        stream = torch.accelerator.current_stream()
        self.clocks[0].record(stream)
        hold_back()
        self.clocks[1].record(stream)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def waited_ms(self) -> float:
        self.clocks[1].synchronize()
        return self.clocks[0].elapsed_time(self.clocks[1])

    def state(self) -> dict[str, Any]:
        return state_of(self.model, self.optimizer)


class Block(NamedTuple):
    """What some steps of one mode took."""

    step_s: list[float]
    in_keep_s: list[float]
    gate_ms: list[float]
    kept: int
    is_direct: bool


def block(training: Training, mode: Mode, plan: Plan) -> Block:
    found = Block([], [], [], 0, False)
    with kept(mode, plan.sizes) as keeping:
        numbers = itertools.count(1)
        keeping.until_ready(lambda: _step(training, keeping, next(numbers)))
        number = 0
        for _ in range(plan.steps):
            began = time.perf_counter()
            in_keep, is_kept = _step(training, keeping, next(numbers))
            found.gate_ms.append(training.waited_ms())
            found.step_s.append(time.perf_counter() - began)
            found.in_keep_s.append(in_keep)
            number += is_kept
        keeping.wait_sealed()
        return found._replace(kept=number, is_direct=mode != "nothing" and keeping.is_ready)


def _step(training: Training, keeping: Keeping, step: int) -> tuple[float, bool]:
    """Train a step, and keep it; return the seconds in `keep`, and if it is kept."""
    training.backward()
    training.update(keeping.hold_back)
    began = time.perf_counter()
    is_kept = keeping.keep(step, training.state)
    return time.perf_counter() - began, is_kept


def turns(training: Training, modes: tuple[Mode, ...], plan: Plan, parts: Parts) -> list[dict[str, Any]]:
    """Run blocks of all modes in turns, the second time in the opposite order; return a row for each mode."""
    blocks: dict[Mode, list[Block]] = {mode: [] for mode in modes}
    for number in range(plan.rounds):
        for mode in modes if number % 2 == 0 else modes[::-1]:
            if parts.left_s > 0:
                tell(f"  round {number + 1}: {mode}")
                blocks[mode].append(block(training, mode, plan))
    base = median([it for each in blocks["nothing"] for it in each.step_s])
    return [_row(mode, some, base) for mode, some in blocks.items() if some]


def _row(mode: Mode, blocks: list[Block], base: float | None) -> dict[str, Any]:
    steps = [it for each in blocks for it in each.step_s]
    kept_s = [it for each in blocks for it in each.in_keep_s]
    gates = [it for each in blocks for it in each.gate_ms]
    step = median(steps) or 0.0
    return {
        "mode": mode,
        "step_ms": 1000 * step,
        "p99_ms": 1000 * (percentile(steps, 99) or 0.0),
        "longer_%": 100 * (step / base - 1) if base else None,
        "keep_ms": 1000 * (median(kept_s) or 0.0) if mode != "nothing" else None,
        "gate_ms": median(gates) if mode not in ("nothing", "within") else None,
        "steps": len(steps),
        "kept": sum(it.kept for it in blocks),
        "is_direct": all(it.is_direct for it in blocks) if mode not in ("nothing", "within") else None,
    }


def restores(training: Training, plan: Plan) -> list[dict[str, Any]]:
    """Keep steps while training goes on, read them back, and compare them with copies in the order of training."""
    rows: list[dict[str, Any]] = []
    with kept("gate", plan.sizes) as keeping:
        assert keeping.client is not None
        for step in range(1, plan.restores + 1):
            training.backward()
            training.update(keeping.hold_back)
            truth = {path: it.detach().clone() for path, it in _tensors(training.state())}
            keeping.keep(step, training.state)
            training.backward()
            training.update(keeping.hold_back)
            keeping.wait_sealed()
            began = time.perf_counter()
            found = keeping.client.restore(SealedStep(generation=1, step=step), to_device=True)
            torch.accelerator.synchronize()
            took_s = time.perf_counter() - began
            restored = dict(_tensors(found))
            differing = [path for path, it in truth.items() if not _is_same(it, restored[path])]
            rows.append({"step": step, "tensors": len(truth), "differing": len(differing), "restored_s": took_s})
    return rows


def _tensors(state: dict[str, Any], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _tensors(value, f"{path}/{key}")
        elif isinstance(value, torch.Tensor):
            yield f"{path}/{key}", value


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    as_bytes = [it.contiguous().view(-1).view(torch.uint8) for it in (one, other.to(one.device))]
    return torch.equal(*as_bytes)


def beside_copies(device: torch.device, plan: Plan, matrix: int, nbytes: int) -> list[dict[str, Any]]:
    """Time matrix products alone, and while another stream copies to the host without a pause."""
    one = torch.randn(matrix, matrix, device=device)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
    own, ended = torch.Stream(device), threading.Event()
    alone = [seconds(lambda: one @ one) for _ in range(plan.products)]

    def copy() -> None:
        torch.accelerator.set_stream(own)
        while not ended.is_set():
            target.copy_(source, non_blocking=True)
            own.synchronize()

    thread = threading.Thread(target=copy)
    thread.start()
    stream = torch.accelerator.current_stream()
    beside = []
    for _ in range(plan.products):
        began = time.perf_counter()
        one @ one
        stream.synchronize()
        beside.append(time.perf_counter() - began)
    ended.set()
    thread.join()
    base = median(alone) or 1.0
    return [
        {"product": name, "median_ms": 1000 * (median(it) or 0), "longer_%": 100 * ((median(it) or 0) / base - 1)}
        for name, it in (("alone", alone), ("beside copies", beside))
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--layers", type=int, help="of the GPT; default: as many as fit, 24 at most")
    args = parser.parse_args()
    device = use(args.device)
    here = described(device)
    is_sim = device.type == SIMULATED
    plan = SIM if is_sim else QUICK if args.quick else FULL
    shape = TINY if is_sim else LARGE
    if args.layers or args.quick:
        shape = shape._replace(layers=args.layers or shape.layers // 2)
    free = free_bytes(device) or 8 * GB
    shape = fitted(shape, int(min(free / ON_DEVICE, available_bytes() / (SEGMENTS + 1))))
    here |= {"parameters_billions": shape.parameters / 1e9, "state_gb": shape.state_bytes / GB}
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    results, last = Parts(args.only), dict[Kind, Training]()

    def training(kind: Kind) -> Training:
        if kind == "compiled" and is_sim:
            raise RuntimeError("the simulated accelerator has no inductor")
        if kind not in last:
            # There is memory for one.
            last.clear()
            last[kind] = Training(shape, device, kind)
        return last[kind]

    def as_kind(kind: Kind) -> list[dict[str, Any]]:
        return turns(training(kind), ("nothing", "gate"), plan._replace(rounds=1), results)

    matrix, nbytes = (64, 1 << 20) if is_sim else (8192, 1 << 30)
    parts = [
        Part("modes", "steps, by mode", lambda: turns(training("plain"), plan.modes, plan, results)),
        Part("restores", "steps that came back, compared bit by bit", lambda: restores(training("plain"), plan)),
        Part("beside_copies", "a matrix product", lambda: beside_copies(device, plan, matrix, nbytes)),
        Part("fsdp2", "the model as FSDP2 of one rank", lambda: as_kind("fsdp2")),
        Part("compiled", "the model, compiled", lambda: as_kind("compiled")),
    ]
    for part in parts:
        results.run(part)
    show("gpu/steps", here, parts, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
