"""A node's vault is killed: how long a rank's next save takes until it is kept, and what is left of the steps before.

    python bench/vault_killed.py            10 kills
    python bench/vault_killed.py --quick    3 kills

An agent's link to its vault runs in a process of its own; this process is the rank.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import machine
import torch
from report import final_line, rounded, table

from holdfast.node.vault import vault_socket
from holdfast.node.vault.messages import ShardName
from holdfast.trainer.checkpoint.memory_tier import VAULT_VARIABLE, MemoryTier
from holdfast_agent.companions.vault_link import VaultLink

SHARD = ShardName(job="bench", submitted_ms=0, world_size=1, rank=0)
STEPS_BETWEEN = 5
WITHIN_S = 30.0
AIM_S = 0.1
"""From a vault's death until a save is kept again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 kills instead of 10")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--megabytes", type=int, default=64, help="of each step")
    arguments = parser.parse_args()
    kills = arguments.kills or (3 if arguments.quick else 10)
    with tempfile.TemporaryDirectory() as directory:
        agent = multiprocessing.get_context("spawn").Process(target=_agent, args=(directory,), daemon=True)
        agent.start()
        try:
            took_s, left = _measure(Path(directory), kills, arguments.megabytes << 20)
        finally:
            _end(Path(directory))
            agent.terminate()
            agent.join()
    median, worst = statistics.median(took_s), max(took_s)
    in_time = sum(each <= AIM_S for each in took_s)
    figures = {
        "kills": kills,
        "megabytes": arguments.megabytes,
        "kept_again_median_s": rounded(median),
        "kept_again_max_s": rounded(worst),
        "within_aim": in_time,
        "steps_left_min": min(left),
        "steps_left_max": max(left),
    }
    table(tuple(figures), [tuple(figures.values())])
    verdict = "met" if in_time == kills else "missed"
    print(f"\naim of {AIM_S:g} s until a save is kept again: {verdict}, {in_time} of {kills} ({in_time / kills:.1%})\n")
    final_line({"bench": "vault_killed", "machine": machine.describe(), "load": machine.load(), "results": figures})


def _agent(directory: str) -> None:
    sys.stdout = sys.stderr
    asyncio.run(VaultLink(Path(directory), "127.0.0.1", 60.0, None).run())


def _measure(directory: Path, kills: int, nbytes: int) -> tuple[list[float], list[int]]:
    os.environ[VAULT_VARIABLE] = str(directory)
    tier, weights = MemoryTier(SHARD, 1), torch.zeros(nbytes // 4)
    vault, step, took_s, left = _vault(directory, 0), 0, list[float](), list[int]()
    for _ in range(kills):
        for _ in range(STEPS_BETWEEN):
            weights.fill_(step := step + 1)
            assert tier.keep(step, {"weights": weights}), f"step {step} is not kept"
        # The pause of a job whose vault ends again and again is not measured.
        tier._waits_from = 0.0
        before = set(tier.sealed() or ())
        os.kill(vault, signal.SIGKILL)
        began = time.monotonic()
        while not tier.keep(step := step + 1, {"weights": weights}):
            assert time.monotonic() < began + WITHIN_S, "no vault keeps steps any more"
        took_s.append(time.monotonic() - began)
        left.append(len(before & set(tier.sealed() or ())))
        vault = _vault(directory, vault)
    return took_s, left


def _vault(directory: Path, before: int) -> int:
    """Return the process of the vault, as soon as there is another one than before."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            with vault_socket.connect(directory) as link:
                if (pid := vault_socket.peer_pid(link)) != before:
                    return pid
        except OSError:
            pass
        time.sleep(0.01)
    raise AssertionError("no vault comes up")


def _end(directory: Path) -> None:
    with vault_socket.connect(directory) as link:
        os.kill(vault_socket.peer_pid(link), signal.SIGTERM)


if __name__ == "__main__":
    main()
