"""A training job whose script does what its author should not: whatever is asked of it, by name, in the drop directory.

Its node's Python may be closed to the user that it runs as: it imports only what the zygote has imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drop", type=Path, required=True)
    parser.add_argument("--deeds", type=Path, nargs="+", required=True, help="the script's own functions")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    deeds: dict[str, object] = {}
    for path in args.deeds:
        exec(compile(path.read_text(), str(path), "exec"), deeds)  # noqa: S102 - its author's own code
    journal = os.open(args.drop / f"rank-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    generation = int(os.environ["HOLDFAST_GENERATION"])
    state = {"weight": torch.ones(1000)}
    checkpointer = Checkpointer()
    step, is_over = checkpointer.restore(state), False
    while not is_over:
        step += 1
        wish = torch.tensor([int(rank == 0 and (args.drop / "finish").exists())])
        dist.all_reduce(wish)
        is_over = bool(wish[0])
        # Each step is kept in memory: more of them would take longer than the attempts that are made meanwhile.
        time.sleep(0.04)
        trainer.step(step, loss=1 / step)
        checkpointer.keep(step, state)
        os.write(journal, f"{generation} {step} {os.getpid()} 0\n".encode())
        answer(args.drop, rank, deeds)
    dist.barrier()
    dist.destroy_process_group()


def answer(drop: Path, rank: int, deeds: dict[str, object]) -> None:
    ask, told, part = (drop / f"{kind}-{rank}" for kind in ("ask", "told", "part"))
    if not ask.exists():
        return
    name, arguments = json.loads(ask.read_text())
    ask.unlink()
    # Beside training, which must not stand still for it.
    threading.Thread(target=do, args=(deeds, name, arguments, told, part)).start()


def do(deeds: dict[str, object], name: str, arguments: list[object], told: Path, part: Path) -> None:
    try:
        result = {"got": deeds[name](*arguments)}  # type: ignore[operator]
    except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
        result = {"failed": traceback.format_exc()}
    part.write_text(json.dumps(result, default=repr))
    part.rename(told)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
