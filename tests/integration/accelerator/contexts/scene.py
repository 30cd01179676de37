"""A node whose zygote has the simulated accelerator, as it would have CUDA, and a job that trains there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holdfast.events import ContextAhead, RanksStarted
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import Node, node, until

MIB = 1 << 20
DEVICE_BYTES = 512 * MIB
CONTEXT_BYTES = 64 * MIB
CONTEXT_MS = 800
ROOM_BYTES = 128 * MIB
ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).with_name("training_rank.py")


def device_environment(place: Path) -> dict[str, str]:
    """Variables with which every Python that imports torch has the device, and all share its memory."""
    plugin = place / "plugin"
    found = plugin / "sim_device-1.0.dist-info"
    found.mkdir(parents=True, exist_ok=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: sim-device\nVersion: 1.0\n")
    (found / "entry_points.txt").write_text("[torch.backends]\nsim = tests.accelerator:load\n")
    return {
        "PYTHONPATH": os.pathsep.join((str(plugin), str(ROOT))),
        "SIM_DEVICE_BOARD": str(place / "board"),
        "SIM_DEVICE_BYTES": str(DEVICE_BYTES),
        "SIM_CONTEXT_BYTES": str(CONTEXT_BYTES),
        "SIM_CONTEXT_MS": str(CONTEXT_MS),
        "HOLDFAST_JOBS_CONTEXT_ROOM_BYTES": str(ROOM_BYTES),
    }


class Job:
    """A job of one rank, whose generations are ordered one after the other."""

    def __init__(self, it: Node, name: str, place: Path, **variables: str) -> None:
        self.it = it
        self.place = place
        place.mkdir()
        self.spec = JobSpec(
            name=name,
            script=str(SCRIPT),
            args=(str(place),),
            nproc_per_node=1,
            cwd=str(place),
            directory=str(place),
            env=variables,
        )

    async def start(self, generation: int, *, stop_at: int) -> RanksStarted:
        """Order a generation that waits after a step; return once its rank is started."""
        (self.place / "stop-at").write_text(str(stop_at))
        port = (await self.it.registered()).facts.store_ports[generation % 4]
        await self.it.order(self.spec, generation, port)
        return await self.it.heard.wait(RanksStarted, lambda event: event.generation == generation)

    def notes(self, generation: int) -> list[dict[str, Any]]:
        path = self.place / f"notes-{generation}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def reached(self, generation: int, step: int) -> dict[str, Any]:
        """Wait for a step of a generation; return what the rank noted at its start."""
        await until(lambda: any(note.get("step") == step for note in self.notes(generation)))
        return next(note for note in self.notes(generation) if "pid" in note)

    def ask(self, name: str, nbytes: int) -> None:
        """Have the rank take memory of the device."""
        (self.place / f"{name}.tmp").write_text(str(nbytes))
        (self.place / f"{name}.tmp").rename(self.place / name)

    async def allocate(self, generation: int, name: str, nbytes: int) -> str:
        """Have the rank take memory of the device; return how that went."""
        self.ask(name, nbytes)
        await until(lambda: any(name in note.get("allocated", "") for note in self.notes(generation)))
        return next(str(note["allocated"]) for note in self.notes(generation) if name in note.get("allocated", ""))

    def losses(self, *generations: int) -> dict[int, float]:
        return {note["step"]: note["loss"] for one in generations for note in self.notes(one) if "step" in note}

    async def context(self, generation: int, *, is_ready: bool = True) -> ContextAhead:
        """Wait for what is published of a context that was asked for in a generation."""
        return await self.it.heard.wait(
            ContextAhead, lambda event: event.generation == generation and event.is_ready == is_ready
        )


def spares_of(it: Node) -> list[int]:
    """Return the pids of the zygote's children that have begun to use the device."""
    found = []
    for pid in Path(f"/proc/{it.zygote}/task/{it.zygote}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            has_device = "/board" in Path(f"/proc/{pid}/maps").read_text()
            if has_device and Path(f"/proc/{pid}/comm").read_text().strip() == "rank-to-be":
                found.append(int(pid))
    return found


@contextlib.asynccontextmanager
async def device_node(name: str, place: Path, url: str, **variables: str) -> AsyncIterator[Node]:
    async with node(name, place / "state", url, device_environment(place) | variables) as it:
        try:
            yield it
        except BaseException:
            for path in sorted((place / "state").glob("logs/*/*")):
                print(f"--- {path}\n{path.read_text()[-4000:]}", file=sys.stderr)
            raise


def end_zygote(place: Path) -> None:
    """End the zygote that nodes in this place have left, if it is not another process by now."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        zygote = int((place / "state/zygote.pid").read_text())
        if str(place).encode() in Path(f"/proc/{zygote}/cmdline").read_bytes():
            os.kill(zygote, signal.SIGKILL)
