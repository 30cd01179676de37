"""A training that looks around: what its user reaches beyond what is its own is a line in `seen`."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from holdfast import trainer
from holdfast.trainer.checkpoint import Checkpointer

PTRACE_SEIZE = 0x4206
CLUSTER, OTHER_NODE, FINISH = sys.argv[1:4]
POSTGRES, NATS = map(int, sys.argv[4:6])
JOB = Path(os.environ["HOLDFAST_JOB_DIR"])


def tried(what: str, attempt: Callable[[], object]) -> Iterator[str]:
    try:
        attempt()
    except (OSError, ConnectionError):
        return
    except Exception as error:  # noqa: BLE001 - asyncpg has a class for each refusal
        if "password" in str(error).lower():
            return
        yield f"{what}: {error!r}"
        return
    yield what


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        folder = os.open(path.parent, os.O_PATH)
        link.connect(f"/proc/self/fd/{folder}/{path.name}")


def ask_nats() -> None:
    with socket.create_connection(("127.0.0.1", NATS)) as link:
        link.sendall(b'CONNECT {"verbose":true}\r\nPING\r\n')
        answer = b""
        while part := link.recv(4096):
            answer += part
            if b"-ERR" in answer:
                raise ConnectionError(answer)
            if b"PONG" in answer:
                return


async def ask_postgres() -> None:
    import asyncpg

    connection = await asyncpg.connect(host="127.0.0.1", port=POSTGRES, user="postgres", database="postgres")
    await connection.close()


def seize(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, pid, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def beyond() -> Iterator[str]:
    """Yield what could be reached and must not."""
    cluster, own = Path(CLUSTER), Path(os.environ["HOLDFAST_VAULT"])
    for folder in (cluster, own, own.parent, cluster / "logs", cluster / "postgres", own / "logs", own / "code"):
        yield from tried(f"list {folder}", partial(os.listdir, folder))
        yield from tried(f"write to {folder}", partial((folder / "mine").write_text, ""))
    for name in ("secrets.json", "cluster.json", "lock", f"nodes/{own.name}/agent.db", f"nodes/{own.name}/agent.pid"):
        yield from tried(f"change {name}", partial((cluster / name).open, "r+"))
    for name in ("secrets.json", "cluster.json", f"nodes/{own.name}/agent.db"):
        yield from tried(f"read {name}", (cluster / name).read_bytes)
    yield from tried("read the lock", (cluster / "lock").read_bytes)
    for path in (cluster / "control.sock", cluster / "nursery.sock", own / "zygote.sock"):
        yield from tried(f"connect to {path}", partial(connect, path))
    other = own.parent / OTHER_NODE
    yield from tried("connect to another job's vault", lambda: connect(other / "vault.sock"))
    yield from tried("read another job's reports", (other / "reports" / "other.jsonl").read_bytes)
    yield from tried("list another job's directory", lambda: os.listdir(JOB.parent / "other"))
    memory = Path(os.environ["HOLDFAST_LEDGER"]).resolve().parents[2]
    for folder in Path("/dev/shm").glob("holdfast-*"):
        yield from tried(f"list {folder}", partial(os.listdir, folder))
        if folder != memory:
            yield from tried(f"pass {folder}", partial(os.stat, folder / "other"))
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or not process.exists() or process.stat().st_uid == os.getuid():
            continue
        pid = int(process.name)
        yield from tried(f"read the environment of {pid}", (process / "environ").read_bytes)
        yield from tried(f"signal {pid}", partial(os.kill, pid, 0))
        yield from tried(f"trace {pid}", partial(seize, pid))
    yield from tried("ask NATS", ask_nats)
    yield from tried("ask Postgres", lambda: asyncio.run(ask_postgres()))


state = {"weight": torch.zeros(1 << 20)}
checkpointer = Checkpointer()
done = checkpointer.restore(state)
weight = state["weight"]
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
(Path.home() / "written").write_text("")
seen = {
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapPrm"], 16),
    "user": getpass.getuser(),
    "caches": default_cache_dir(),
    "restored": [done, int(weight[0])],
    "beyond": [*beyond()] if OTHER_NODE else [],
}
step = done
while not Path(FINISH).exists():
    step += 1
    weight += 1
    trainer.step(step, loss=1.0)
    checkpointer.keep(step, state)
    clients = [it for it in gc.get_objects() if type(it).__name__ == "VaultClient"] if step == done + 20 else []
    if clients:
        seen["protects"] = any(client.protects for client in clients)
        draft = JOB / "draft"
        draft.write_text(json.dumps(seen))
        draft.rename(JOB / f"seen-{os.environ['HOLDFAST_GENERATION']}")
    time.sleep(0.02)
print(f"ended at {step} with {int(weight[0])}", flush=True)
