"""Ranks and vaults killed while the device copies, and what comes back: command plan C.

    python bench/gpu/kills.py                 20 ranks and 10 vaults, 4 GB of state; under ten minutes
    python bench/gpu/kills.py --quick         5 and 3, 1 GB
    python bench/gpu/kills.py --device sim    how it runs, on the test accelerator; no figures

A rank keeps every step of a state whose elements all have the step's number as their value; its steps do nothing else,
so a copy is nearly always under way. It gets `kill -9` at random moments, once its vault's memory is pinned. Then:

- restored: the newest step, which must be the last that was sealed, or that the vault was asked to seal; torn: how
  many steps came back with other values than their number.
- late writes: the vault's memory files that change after the rank is gone: the driver must have ended all copies.
- the next rank's seconds until it has a context, until the vault has listed its steps, until the state is restored.

Then the vault is killed under a rank that lives. At last a script that changes parameters outside its optimizer, which
must be found and cost steps, but no wrong one. How to read it: docs/gpu.md.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from board import Board, Place
from device import GB, Part, Parts, arguments, available_bytes, described, use
from killed_rank import Scene, again, train, write_late
from report import median, rounded, tell
from show import show
from vaults import vault

from holdfast.node.frames import WireError
from holdfast.node.vault import vault_socket
from holdfast.node.vault.mmap_file import map_file
from holdfast.trainer.vault_client.client import MemoryRefused

MODULES = ("torch", "torch.distributed.tensor", "holdfast.trainer.device.copies")
"""Imported once, before ranks are forked: an import takes longer than a context."""
WITHIN_S = 90.0
KILLED_WITHIN_S = 0.5
WRITES_WATCHED = 5
"""After so many kills the vault's memory is watched: it is read twice."""
SEGMENTS = 3
POLL_S = 0.002


class Counts(NamedTuple):
    ranks: int
    vaults: int
    nbytes: int


FULL = Counts(20, 10, 4 * GB)
QUICK = Counts(5, 3, GB)
SIM = Counts(2, 1, 400_000)

Forks = Any
"""A context of multiprocessing that forks from a process without a device."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    args = parser.parse_args()
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(list(MODULES))
    here = _described_elsewhere(forks, args.device)
    counts = SIM if here["is_simulated"] else QUICK if args.quick else FULL
    counts = counts._replace(nbytes=min(counts.nbytes, available_bytes() // (SEGMENTS + 3)))
    here["state_gb"] = counts.nbytes / GB
    draw, results = random.Random(args.seed), Parts(args.only)

    def within(work: Callable[[Scene, Forks], list[dict[str, Any]]]) -> Callable[[], list[dict[str, Any]]]:
        def run() -> list[dict[str, Any]]:
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root, vault(Path(root)) as node:
                scene = Scene(args.device, node.directory, Path(root) / "board", counts.nbytes)
                return work(scene, forks)

        return run

    parts = [
        Part("ranks", "ranks killed", within(lambda *of: kill_ranks(*of, counts.ranks, draw, results))),
        Part("vaults", "vaults killed under a rank that lives", within(lambda *of: kill_vaults(*of, counts, draw))),
        Part("late_writer", "a script that changes parameters outside its optimizer", within(late_writer)),
    ]
    for part in parts:
        results.run(part)
    show("gpu/kills", here, parts, results)


def _described_elsewhere(forks: Forks, wanted: str | None) -> dict[str, Any]:
    """Ask another process: one that has used a device cannot fork others that do."""
    with forks.Pool(1) as pool:
        found = pool.apply(_describe, (wanted,))
    if isinstance(found, str):
        raise SystemExit(found)
    return found  # type: ignore[no-any-return]


def _describe(wanted: str | None) -> dict[str, Any] | str:
    """Return what the device is, or why there is none: a process of a pool must not exit."""
    try:
        return described(use(wanted))
    except SystemExit as error:
        return str(error)


def kill_ranks(scene: Scene, forks: Forks, kills: int, draw: random.Random, results: Parts) -> list[dict[str, Any]]:
    found, context_s, steps_s, restored_s = list[_Came](), list[float](), list[float](), list[float]()
    watched = late = 0
    for generation in range(1, kills + 1):
        if results.left_s < 0:
            break
        board = Board(scene.board, clear=True)
        rank = forks.Process(target=train, args=(scene, generation), daemon=True)
        rank.start()
        _wait(lambda b=board, r=rank: b.get(Place.DIRECT) > 1 or not r.is_alive(), "the rank keeps no step")
        time.sleep(draw.random() * KILLED_WITHIN_S)
        assert rank.is_alive(), "the rank ended by itself"
        os.kill(rank.pid, signal.SIGKILL)
        rank.join()
        if generation <= WRITES_WATCHED:
            before = _sums(scene.directory)
            time.sleep(0.2)
            after = _sums(scene.directory)
            watched += len(before.keys() & after.keys())
            late += sum(before[it] != after[it] for it in before.keys() & after.keys())
        found.append(_came(board, *restored(scene, generation + 1)))
        if generation > 1:
            context_s.append(board.seconds(Place.CONTEXT))
            steps_s.append(board.seconds(Place.STEPS))
            restored_s.append(board.seconds(Place.RESTORED))
        tell(f"  [{generation}/{kills}] {found[-1]}")
    return [
        _row(found)
        | {"memory_files": watched, "late_writes": late, "next_context_s": median(context_s)}
        | {"next_steps_s": median(steps_s), "next_restored_s": median(restored_s)}
    ]


def kill_vaults(scene: Scene, forks: Forks, counts: Counts, draw: random.Random) -> list[dict[str, Any]]:
    board, found, again_s = Board(scene.board, clear=True), list[_Came](), list[float]()
    rank = forks.Process(target=train, args=(scene, 1), daemon=True)
    rank.start()
    try:
        _wait(lambda: board.get(Place.DIRECT) > 1 or not rank.is_alive(), "the rank keeps no step")
        for number in range(counts.vaults):
            before = board.get(Place.SEALED)
            _wait(lambda b=before: board.get(Place.SEALED) > b and _has_successor(scene.directory), "no vault follows")
            time.sleep(draw.random() * KILLED_WITHIN_S)
            os.kill(_vault(scene.directory), signal.SIGKILL)
            began, sealed = time.perf_counter(), board.get(Place.SEALED)
            step, is_torn = restored(scene, 1)
            found.append(_Came(step, is_torn, step >= sealed))
            _wait(lambda s=sealed: board.get(Place.SEALED) > s, "no step is sealed any more")
            again_s.append(time.perf_counter() - began)
            tell(f"  [{number + 1}/{counts.vaults}] {found[-1]}")
    finally:
        rank.kill()
        rank.join()
        _end_vault(scene.directory)
    return [_row(found) | {"sealed_again_s": median(again_s), "sealed_again_max_s": rounded(max(again_s))}]


def late_writer(scene: Scene, forks: Forks) -> list[dict[str, Any]]:
    with forks.Pool(1) as pool:
        result: dict[str, Any] = pool.apply(write_late, (scene,))
    return [result]


class _Came(NamedTuple):
    """The step that came back; its elements have other values; it is as new as it can be."""

    step: int
    is_torn: bool
    is_newest: bool


def _came(board: Board, step: int, is_torn: bool) -> _Came:
    return _Came(step, is_torn, step in (board.get(Place.SEALED), board.get(Place.ASKED)))


def _row(found: list[_Came]) -> dict[str, Any]:
    return {
        "kills": len(found),
        "torn": sum(it.is_torn for it in found),
        "not_newest": sum(not it.is_newest for it in found),
    }


def restored(scene: Scene, generation: int) -> tuple[int, bool]:
    """Return the newest step, and whether its elements have other values than its number."""
    until = time.monotonic() + WITHIN_S
    while True:
        client = again(scene.directory, generation, None)
        try:
            steps = client.steps()
            if not steps:
                return 0, False
            state = client.restore(steps[0])
        except (WireError, MemoryRefused):
            # The vault was killed meanwhile, or the rank has kept so many steps that this one is gone.
            if time.monotonic() > until:
                raise
            continue
        finally:
            client.close()
        step = steps[0].step
        tensors = [*state["parameters"], state["mean"]]
        return step, not all(float(it.min()) == float(it.max()) == float(step) for it in tensors)


def _wait(condition: Callable[[], bool], failure: str) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"{failure} within {WITHIN_S:g} s")
        time.sleep(POLL_S)


def _sums(directory: Path) -> dict[int, int]:
    """Return the sum of all bits of each memory file that the vault has, by its number."""
    found: dict[int, int] = {}
    for link in Path(f"/proc/{_vault(directory)}/fd").iterdir():
        try:
            if not os.readlink(link).startswith("/memfd:"):
                continue
            descriptor = os.open(link, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            status = os.fstat(descriptor)
            words = map_file(descriptor, status.st_size // 8 * 8, private=True).view(np.uint64)
            found[status.st_ino] = int(words.sum())
        finally:
            os.close(descriptor)
    return found


def _vault(directory: Path) -> int:
    with vault_socket.connect(directory) as link:
        return vault_socket.peer_pid(link)


def _has_successor(directory: Path) -> bool:
    try:
        tasks = Path(f"/proc/{_vault(directory)}/task").iterdir()
        return any((task / "children").read_text().split() for task in tasks)
    except OSError:
        return False


def _end_vault(directory: Path) -> None:
    """End the last successor, whose first predecessor alone is a child of this process."""
    try:
        os.kill(_vault(directory), signal.SIGTERM)
    except OSError:
        tell("the vault has ended before")


if __name__ == "__main__":
    main()
