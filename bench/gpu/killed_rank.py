"""The rank of `kills.py`: it keeps every step of a state whose elements have the step's number as their value."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from board import Board, Place
from device import SIMULATED, use

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.trainer.device.checks import INTERVAL_VARIABLE
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.device.fill_link import FillLink
from holdfast.trainer.device.guards import SIZES, CopySizes
from holdfast.trainer.vault_client.client import MemoryRefused, VaultClient

NAME = ShardName(job="bench", submitted_ms=1, world_size=2, rank=0)
"""One of two ranks: it waits for the step before, and skips none."""
LARGE_BYTES = 256 << 20
"""Largest tensor of the state."""
AVERAGED = 5_000
CONNECTED_WITHIN_S = 60.0
LATE_STEPS = 8


class Scene(NamedTuple):
    device: str | None
    directory: Path
    """Of the vault."""
    board: Path
    nbytes: int
    """Of the state."""


class Numbering(torch.optim.Optimizer):
    """Makes each element the number of the step."""

    def __init__(self, parameters: list[torch.nn.Parameter], done: int) -> None:
        super().__init__(parameters, {})
        self.done = done

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.done += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.fill_(float(self.done))


class Job:
    """Tensors of an optimizer, and a mean that no optimizer has."""

    def __init__(self, scene: Scene, device: torch.device, done: int) -> None:
        elements = max(1, scene.nbytes // 4)
        each = min(elements, LARGE_BYTES // 4)
        sizes = [each] * (elements // each) + [100]
        self.parameters = [torch.nn.Parameter(torch.full((it,), float(done), device=device)) for it in sizes]
        self.optimizer = Numbering(list(self.parameters), done)
        self.mean = torch.full((AVERAGED,), float(done), device=device)

    def step(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the state of the next step."""
        self.optimizer.step()
        done = self.optimizer.done
        self.mean.fill_(float(done))
        return done, {"parameters": self.parameters, "mean": self.mean}


def train(scene: Scene, generation: int) -> None:
    """Restore, and go on until this process is killed."""
    board = Board(scene.board)
    began = time.perf_counter()
    device = use(scene.device)
    torch.zeros(1, device=device)
    torch.accelerator.synchronize()
    began = _put_seconds(board, Place.CONTEXT, began)
    _note_seals(board)
    copies = _copies(scene, device, generation)
    client = VaultClient(scene.directory, NAME, generation, copies=copies)
    steps = client.steps() if generation > 1 else ()
    client.keep_only(steps[0] if steps else None)
    began = _put_seconds(board, Place.STEPS, began)
    done = 0
    if steps:
        state = client.restore(steps[0], to_device=True)
        torch.accelerator.synchronize()
        done = int(state["mean"][0].item())
        del state
    _put_seconds(board, Place.RESTORED, began)
    job = Job(scene, device, done)
    while True:
        step, state = job.step()
        try:
            client.save(step, state)
            board.put(Place.DIRECT, board.get(Place.DIRECT) + copies.is_direct)
        except (WireError, MemoryRefused):
            client = again(scene.directory, generation, copies)
        # Not an optimizer's: its shadow must have it as it was.
        job.mean.fill_(-1.0)


def write_late(scene: Scene) -> dict[str, Any]:
    """Change parameters outside the optimizer while they are copied; return what became of the steps."""
    os.environ[INTERVAL_VARIABLE] = "1"
    device = use(scene.device)
    copies = _copies(scene, device, 1)
    client = VaultClient(scene.directory, NAME, 1, copies=copies)
    job, sealed, wrong = Job(scene, device, 0), list[int](), 0
    for _ in range(LATE_STEPS):
        step, state = job.step()
        client.save(step, state)
        for parameter in job.parameters:
            parameter.data.fill_(-2.0)
        copies.wait_sealed(CONNECTED_WITHIN_S)
        if copies.sealed == step:
            sealed.append(step)
            found = client.restore(SealedStep(generation=1, step=step))
            wrong += not all(bool((it == step).all()) for it in found["parameters"])
    client.close()
    copies.close()
    return {"steps": LATE_STEPS, "sealed": len(sealed), "sealed_wrong": wrong, "is_found": copies._shadows_all}


def again(directory: Path, generation: int, copies: DeviceCopies | None) -> VaultClient:
    """Return a connection to the vault, or to the one that comes after it."""
    until = time.monotonic() + CONNECTED_WITHIN_S
    while time.monotonic() < until:
        with suppress(WireError, MemoryRefused):
            return VaultClient(directory, NAME, generation, copies=copies)
        time.sleep(0.005)
    raise RuntimeError(f"no vault answers within {CONNECTED_WITHIN_S:g} s")


def _copies(scene: Scene, device: torch.device, generation: int) -> DeviceCopies:
    sizes = CopySizes(1 << 10, 24 << 10, 48 << 10) if device.type == SIMULATED else SIZES
    if device.type == SIMULATED:
        from tests import accelerator

        accelerator.bandwidth(40e6)
        accelerator.slice_bytes(16 << 10)
    return DeviceCopies(scene.directory, NAME, generation, None, sizes=sizes)


def _put_seconds(board: Board, place: Place, began: float) -> float:
    now = time.perf_counter()
    board.put_seconds(place, now - began)
    return now


def _note_seals(board: Board) -> None:
    fill, finish = FillLink.fill, FillLink.finish
    current = [0]

    def filling(link: FillLink, step: int, objects: bytes) -> Any:
        current[0] = step
        return fill(link, step, objects)

    def finishing(link: FillLink, nbytes: int) -> None:
        board.put(Place.ASKED, current[0])
        finish(link, nbytes)
        board.put(Place.SEALED, current[0])

    FillLink.fill, FillLink.finish = filling, finishing  # type: ignore[method-assign]
