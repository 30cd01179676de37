"""The training script of the benchmarks: the same file under torchrun and under Holdfast.

Data parallelism over gloo with its own checkpoints, as torchrun scripts are written. Every rank notes in a file of its
own when it began, had joined the others, had restored, and completed each step; so both launchers are measured by what
the ranks themselves saw, with one clock.
"""

from __future__ import annotations

import time

BEGAN = time.time()

import argparse  # noqa: E402 - what comes before the imports is not in the figures
import os  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402


def main() -> None:
    args = parse_arguments()
    if args.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    record = Record(args.record)
    record.note("began", at=BEGAN)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    record.note("joined")

    width = args.width
    model = nn.Sequential(*(layer for _ in range(args.layers) for layer in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    teacher = torch.randn(width, width) / width**0.5
    memory = Memory(args.ckpt_dir, {"model": model, "optimizer": optimizer}) if args.keep else None
    done = memory.restore() if memory else restore(args.ckpt_dir / "latest.pt", model, optimizer)
    record.note("restored", done)
    say_step = holdfast_step(args.bare_switch)

    for step in range(done + 1, args.steps + 1):
        # Seeded by step and rank: a restarted run sees the batches that it would have seen.
        inputs = torch.randn(args.batch, width, generator=torch.Generator().manual_seed(step * world_size + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        average([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        optimizer.step()
        say_step(step, loss)
        record.note("step", step, float(loss).hex())
        if memory:
            memory.keep(step)
        if args.pause_s:
            time.sleep(args.pause_s)
        if rank == 0 and args.ckpt_every and step % args.ckpt_every == 0:
            save(args.ckpt_dir / "latest.pt", step, model, optimizer)

    dist.barrier()
    record.note("done", args.steps)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True, help="directory for what the ranks note")
    parser.add_argument("--ckpt-dir", type=Path, required=True)
    parser.add_argument("--ckpt-every", type=int, default=10, help="steps between checkpoints, 0 for none")
    parser.add_argument("--keep", action="store_true", help="keep each step in the memory of the nodes")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pause-s", type=float, default=0.0, help="idle time of each step, which changes no loss")
    parser.add_argument("--bare-switch", type=Path, help="a file: while it holds 1, the library is not called")
    parser.add_argument("--pin", action="store_true", help="bind each rank to a core, as jobs on large nodes do")
    return parser.parse_args()


class Record:
    """Notes of this rank: one line each, written at once, so that a kill loses none."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"rank-{os.environ['RANK']}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()

    def note(self, what: str, step: int = -1, value: str = "-", at: float | None = None) -> None:
        os.write(self._file, f"{at or time.time():.6f} {self._pid} {what} {step} {value}\n".encode())


def holdfast_step(bare_switch: Path | None) -> Callable[[int, torch.Tensor], None]:
    """One line of a script that uses Holdfast's library; nothing of it is imported under torchrun."""
    if "HOLDFAST_LEDGER" not in os.environ:
        return lambda step, loss: None
    from holdfast import trainer
    from holdfast.trainer.phases import binding

    if bare_switch is None:
        return lambda step, loss: trainer.step(step, loss=loss)
    switch, ledger = os.open(bare_switch, os.O_RDONLY | os.O_CLOEXEC), binding.ledger

    def say(step: int, loss: torch.Tensor) -> None:
        bare = os.pread(switch, 1, 0) == b"1"
        # Without a ledger the hooks of torch's collectives and optimizers do nothing.
        binding.ledger = None if bare else ledger
        if not bare:
            trainer.step(step, loss=loss)

    return say


class Memory:
    """The training state, kept by Holdfast's library after each step."""

    def __init__(self, directory: Path, state: dict[str, object]) -> None:
        from holdfast.trainer.checkpoint import Checkpointer

        self._checkpointer = Checkpointer(directory)
        self._state = state

    def restore(self) -> int:
        """Returns the step that the state is of, 0 when there is none."""
        return self._checkpointer.restore(self._state)

    def keep(self, step: int) -> None:
        self._checkpointer.keep(step, self._state)


def average(gradients: list[torch.Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with open(unfinished, "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """All ranks read rank 0's file. Returns the step it was saved at, 0 when there is none."""
    # Rank 0 writes no checkpoint before all ranks have read: its first step needs their gradients.
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


if __name__ == "__main__":
    main()
