"""Ranks that keep steps from the simulated accelerator until they, or their vault, are killed: a program.

`python killed_ranks.py rank|vault DIRECTORY KILLS SEED` prints a line of JSON for each kill: what had been sealed, and
what came back. The value of each element of a state is its step, so what is torn has two values.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

import torch

from holdfast.node.frames import WireError
from holdfast.node.vault import vault_socket
from holdfast.node.vault.messages import ShardName
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.device.fill_link import FillLink
from holdfast.trainer.device.guards import CopySizes
from holdfast.trainer.vault_client.client import MemoryRefused, VaultClient
from tests import accelerator

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)
SIZES = CopySizes(small_bytes=1 << 10, slice_bytes=24 << 10, mark_bytes=48 << 10)
ELEMENTS = (60_000, 100, 30_000)
KILLED_WITHIN_S = 0.15
WITHIN_S = 60


class Board:
    """Numbers that a rank leaves behind: the step that it asked to be sealed, the last one that was, its worker."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def put(self, place: int, step: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, step)

    def get(self, place: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * place)[0])


ASKED, SEALED, WORKER = 0, 1, 2


class Numbering(torch.optim.Optimizer):
    """Makes each element the number of the step."""

    def __init__(self, parameters: list[torch.Tensor], done: int) -> None:
        super().__init__(parameters, {})
        self.done = done

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.done += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.fill_(float(self.done))


def train(directory: Path, generation: int, board: Board, seed: int) -> None:
    """Restore, and go on until this process is killed."""
    accelerator.seed(seed)
    accelerator.delay(longest_us=200, chance=0.5)
    accelerator.bandwidth(40e6)
    accelerator.slice_bytes(16 << 10)
    _note_seals(board)
    copies = DeviceCopies(directory, NAME, generation, None, sizes=SIZES)
    client = VaultClient(directory, NAME, generation, copies=copies)
    steps = client.steps() if generation > 1 else ()
    done = steps[0].step if steps else 0
    client.keep_only(steps[0] if steps else None)
    parameters = [torch.nn.Parameter(torch.full((each,), float(done), device="sim")) for each in ELEMENTS]
    optimizer = Numbering(list(parameters), done)
    mean = torch.full((5_000,), float(done), device="sim")
    while True:
        optimizer.step()
        mean.fill_(float(optimizer.done))
        try:
            client.save(optimizer.done, {"parameters": parameters, "mean": mean, "step": optimizer.done})
        except (WireError, MemoryRefused):
            client = _again(directory, generation, copies)
        mean.fill_(-1.0)
        if not board.get(WORKER):
            _fork_worker(board)


def _fork_worker(board: Board) -> None:
    """Leave a process that holds all connections open, as one that loads data does."""
    worker = os.fork()
    if worker == 0:
        signal.pause()
        os._exit(0)
    board.put(WORKER, worker)


def _note_seals(board: Board) -> None:
    fill, finish = FillLink.fill, FillLink.finish
    current = [0]

    def filling(link: FillLink, step: int, objects: bytes) -> Any:
        current[0] = step
        return fill(link, step, objects)

    def finishing(link: FillLink, nbytes: int) -> None:
        board.put(ASKED, current[0])
        finish(link, nbytes)
        board.put(SEALED, current[0])

    FillLink.fill, FillLink.finish = filling, finishing  # type: ignore[method-assign]


def _again(directory: Path, generation: int, copies: DeviceCopies | None) -> VaultClient:
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            return VaultClient(directory, NAME, generation, copies=copies)
        except (WireError, MemoryRefused):
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


def forked(directory: Path, generation: int, board: Board, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            train(directory, generation, board, seed)
        finally:
            os._exit(3)
    return pid


def restored(directory: Path, generation: int) -> tuple[int, list[float]]:
    """Return the newest step, and the values that its elements have."""
    while True:
        client = _again(directory, generation, None)
        try:
            steps = client.steps()
            if not steps:
                return 0, []
            state = client.restore(steps[0])
            tensors = [*state["parameters"], state["mean"]]
            values = sorted({float(value) for each in tensors for value in each.unique()} | {state["step"]})
            if steps[0] in client.steps():
                return steps[0].step, values
            # Read too slowly: a rank that lives keeps other steps in this memory by now.
        except (WireError, MemoryRefused):
            continue  # the vault was killed meanwhile, or the rank has kept so many steps that this one is gone
        finally:
            client.close()


def kill_ranks(directory: Path, kills: int, draw: random.Random) -> None:
    for number in range(1, kills + 1):
        board = Board()
        pid = forked(directory, number, board, number)
        until = time.monotonic() + WITHIN_S
        while not (board.get(SEALED) and board.get(WORKER)):
            assert time.monotonic() < until, "the rank has kept nothing"
            time.sleep(0.001)
        time.sleep(draw.random() * KILLED_WITHIN_S)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _show(board.get(SEALED), board.get(ASKED), *restored(directory, number + 1))
        os.kill(board.get(WORKER), signal.SIGKILL)


def kill_vaults(directory: Path, kills: int, draw: random.Random) -> None:
    board = Board()
    pid = forked(directory, 1, board, 1)
    try:
        _kill_again(directory, kills, draw, board)
    finally:
        # What goes on holds the output of this process open, and its reader waits.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if board.get(WORKER):
            os.kill(board.get(WORKER), signal.SIGKILL)
        os.kill(_vault(directory), signal.SIGTERM)


def _kill_again(directory: Path, kills: int, draw: random.Random, board: Board) -> None:
    for _ in range(kills):
        before, until = board.get(SEALED), time.monotonic() + WITHIN_S
        while board.get(SEALED) <= before or not board.get(WORKER) or not _has_successor(directory):
            assert time.monotonic() < until, "the rank has kept nothing, or its vault has no successor"
            time.sleep(0.001)
        time.sleep(draw.random() * KILLED_WITHIN_S)
        os.kill(_vault(directory), signal.SIGKILL)
        sealed = board.get(SEALED)
        step, values = restored(directory, 1)
        _show(sealed, board.get(ASKED), step, values)


def _show(sealed: int, asked: int, step: int, values: list[float]) -> None:
    print(json.dumps({"sealed": sealed, "asked": asked, "restored": step, "values": values}), flush=True)


def _vault(directory: Path) -> int:
    with vault_socket.connect(directory) as link:
        return vault_socket.peer_pid(link)


def _has_successor(directory: Path) -> bool:
    try:
        vault = _vault(directory)
        tasks = Path(f"/proc/{vault}/task").iterdir()
        return any((task / "children").read_text().split() for task in tasks)
    except OSError:
        return False


def _import_ahead() -> None:
    """Import what torch imports late, so that no rank does."""
    Numbering([torch.nn.Parameter(torch.zeros(1))], 0).step()
    some = torch.zeros(4, device="meta")
    torch.stack([some.view(torch.int32).sum(dtype=torch.int64)])
    torch._foreach_copy_([some], [some.fill_(1.0).clone()])


if __name__ == "__main__":
    accelerator.load()
    _import_ahead()
    what, place, kills_given, seed_given = sys.argv[1:]
    {"rank": kill_ranks, "vault": kill_vaults}[what](Path(place), int(kills_given), random.Random(int(seed_given)))
