"""Steps of processes that a rank spawns: the first to step writes the rank's ledger, and the rank ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_layout import Source
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.node.ledger.spawned_ledger import SpawnedLedger, take_over

TORCH = """
hooks = []
def register_optimizer_step_pre_hook(hook):
    pass
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class SGD:
    state = {}
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
"""The part of torch that the hooks on steps use."""

SCRIPT = """
import multiprocessing, sys, time
def train(place, turn, following, done, leave):
    turn.acquire()
    import torch.optim.optimizer
    print("imported", place, "holdfast.trainer.spawned.child" in sys.modules, flush=True)
    optimizer = torch.optim.optimizer.SGD()
    for _ in range(4 if place == 0 else 9):
        optimizer.step()
    following.release()
    done.release()
    leave.acquire()  # it lives, and keeps the ledger
def no_torch():
    print("no torch", any(name.startswith("holdfast") for name in sys.modules), flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    turns = [context.Semaphore(1), context.Semaphore(0), context.Semaphore(0)]
    done, leave = context.Semaphore(0), context.Semaphore(0)
    both = [(place, turns[place], turns[place + 1], done, leave) for place in range(2)]
    ranks = [context.Process(target=train, args=args) for args in both]
    plain = context.Process(target=no_torch)
    for process in (*ranks, plain):
        process.start()
    plain.join()
    done.acquire(); done.acquire()
    leave.release(); leave.release()
    for process in ranks:
        process.join()
    sys.exit(7 if any(process.exitcode for process in (*ranks, plain)) else 3)
"""


def test_a_script_that_spawns_its_ranks_shows_the_steps_of_one_of_them(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "__init__.py").write_text("def load(f): ...\ndef save(obj, f): ...\nclass serialization: ...\n")
    (package / "optimizer.py").write_text(TORCH)
    (tmp_path / "script.py").write_text(SCRIPT)
    ledger = tmp_path / "ledger"
    environment = os.environ | {"HOLDFAST_LEDGER": str(ledger), "HOLDFAST_GENERATION": "1", "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.trainer.rank", "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == ["imported 0 True", "imported 1 True", "no torch False"]
    seen = LedgerReader(ledger)
    found = seen.snapshot()
    assert (found.steps_done, found.exit_code, found.phase_name) == (4, 3, "exit")
    steps, missed = seen.new_steps()
    assert ([step.step for step in steps], missed) == ([0, 1, 2, 3], 0)


def test_what_was_restored_is_known_and_a_second_training_goes_on_counting(tmp_path: Path) -> None:
    rank = LedgerWriter(tmp_path / "ledger", rank=0, generation=1)
    rank.enter_phase("data")
    seen = LedgerReader(rank.path)
    first = SpawnedLedger(rank.path)
    first.begin_steps(50, Source.RESTORED, "the optimizer's restored state")
    assert seen.snapshot().first is None, "who has made no step may be a worker"
    first.complete_step()
    first.complete_step()
    first.enter_collective(b"all_reduce")
    found = seen.snapshot()
    assert (found.step, found.steps_done, found.first, found.source) == (51, 2, 50, Source.RESTORED)
    assert found.collective.entered == 0, "another process group's collectives are none of the job's"
    first.close()
    os.close(first._descriptor)

    second = SpawnedLedger(rank.path)
    second.complete_step()
    assert seen.snapshot().steps_done == 3
    take_over(rank)
    rank.end(0)
    found = seen.snapshot()
    assert (found.step, found.steps_done, found.exit_code) == (52, 3, 0)
