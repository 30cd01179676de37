# ruff: noqa: SIM115 - what is left open here is part of the fault
"""Ways to break a training by signals, memory, limits, disks and mounts."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

HERE = Path(os.environ.get("JOB_DIR", "."))


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def eio() -> None:
    with open("/proc/self/mem", "rb") as file:
        file.read(8)


def segfault() -> None:
    ctypes.string_at(8)


def segfault_told() -> None:
    faulthandler.enable()
    ctypes.string_at(8)


def abort() -> None:
    libc().abort()


def abort_told() -> None:
    faulthandler.enable()
    libc().abort()


def illegal_instruction() -> None:
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGILL)


def floating_point() -> None:
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGFPE)


def double_free() -> None:
    library = libc()
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    block = library.malloc(2000)
    library.malloc(16)
    library.free(block)
    library.free(block)


def bus_error() -> None:
    faulthandler.enable()
    with tempfile.TemporaryFile(dir=HERE) as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        print(view[5000])


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def exits() -> None:
    os._exit(7)


def exits_with_words() -> None:
    sys.exit("giving up")


def bad_alloc() -> None:
    torch.empty(1 << 50)


def memory_error() -> None:
    limit = 3 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    kept = [bytearray(1 << 30) for _ in range(16)]
    print(len(kept))


def numpy_memory() -> None:
    import numpy

    limit = 3 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    numpy.ones((1 << 20, 1 << 13))


def open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [open("/dev/null") for _ in range(100)]
    print(len(kept))


def threads() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for _ in range(64):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()


def disk_full() -> None:
    (HERE / "small" / "log.bin").write_bytes(b"x" * (8 << 20))


def disk_full_checkpoint() -> None:
    torch.save({"weight": torch.ones(4 << 20)}, HERE / "small" / "step-3.pt")


def read_only() -> None:
    (HERE / "small" / "step-3.pt").write_bytes(b"x")


def mount_lost() -> None:
    os.listdir(HERE / "small")


def permission() -> None:
    (HERE / "private").mkdir(mode=0o700, exist_ok=True)
    os.setuid(65534)
    open(HERE / "private" / "step-3.pt", "wb")


def chained() -> None:
    try:
        disk_full_checkpoint()
    except Exception as error:
        raise RuntimeError("the checkpoint of step 3 could not be saved") from error
