"""Work that the zygote does once for all ranks: import torch and warm up what is slow the first time.

Nothing here may start a thread or initialize an accelerator: neither survives a fork.
"""

from __future__ import annotations

import argparse
import importlib
import io
import linecache
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from holdfast.node.kernel import thread_count

MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.data.distributed",
)
FEW_MODULES = ("torch", "torch.distributed")
"""Those that every script of several ranks needs, for a cluster in which one run waits for them."""

_SHOWN = (
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch.cuda",
    "torch.cuda.random",
    "torch.distributed.c10d_logger",
    "torch.distributed.distributed_c10d",
    "torch.mtia",
    "torch.random",
    "torch.xpu",
    "torch.xpu.random",
)
"""Modules in the stacks that `torch.manual_seed` formats, one for each kind of device, and in that of a rank whose peer
died."""

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

log = structlog.get_logger(__name__)


class ThreadsRunning(RuntimeError):
    """The process has more than one thread, so its forks could deadlock."""


def hold_threads() -> None:
    """Limit the numerical libraries to one thread; must be called before their import."""
    for name in _ONE_THREAD:
        os.environ[name] = "1"


def preload(modules: Sequence[str] = MODULES) -> float:
    """Import and warm up; return the seconds taken. Raises ThreadsRunning if an import started a thread."""
    began = time.monotonic()
    for name, reason in import_modules(modules).items():
        log.warning("a module is not preloaded", module=name, reason=reason)
    import torch

    torch.set_num_threads(1)
    rehearse()
    _clear_rules()
    check_single_threaded()
    return time.monotonic() - began


def import_modules(modules: Sequence[str] = MODULES) -> dict[str, str]:
    """Import what ranks need; return what could not be imported, and why. Raises ImportError if that is torch."""
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if name == "torch":
                raise
            failed[name] = str(error)
    return failed


def check_single_threaded() -> None:
    """Raise ThreadsRunning if the process has more than one thread: a fork would not copy the others."""
    threads = thread_count()
    if threads != 1:
        raise ThreadsRunning(
            f"the zygote has {threads} threads and cannot fork safely: find the import that started one "
            "(a plugin or a sitecustomize of this Python?)"
        )


def read_sources() -> None:
    """Read the source lines that stacks of a rank show: it begins with formatting some, and ends with one."""
    own = [name for name in sys.modules if name.startswith(("holdfast.trainer.", "holdfast_agent.zygote."))]
    for name in (*_SHOWN, *own):
        if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
            linecache.getlines(file)


def rehearse() -> None:
    """Do what a rank does between its start and its first step, with a tiny model and without peers.

    In the zygote this fills dispatch tables and loads what is imported late (the optimizer's compiler, the checkpoint
    reader). In a fork it takes the fork's own copies of the pages written. torch.distributed is left out: its C++ part
    reads the environment at first use, and a rank's environment comes later.
    """
    import torch
    from torch import nn

    compile(Path(__file__).read_bytes(), __file__, "exec", dont_inherit=True)
    _parse_arguments()
    layer = nn.Sequential(nn.Embedding(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.ReLU())
    optimizers = [torch.optim.AdamW(layer.parameters()), torch.optim.SGD(layer.parameters(), momentum=0.9)]
    torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    hidden = layer(torch.zeros(2, 4, dtype=torch.long))
    attended = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
    loss = nn.functional.cross_entropy(attended.flatten(0, 1), torch.zeros(8, dtype=torch.long))
    if _is_built_for_accelerator():
        # Backward would query devices and start their autograd threads.
        return
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    state = {"model": layer.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    layer.load_state_dict(saved["model"])
    for optimizer, of in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(of)


def _parse_arguments() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1)
    parser.parse_args(["--steps", "2"])


def _clear_rules() -> None:
    """Clear what the compiler remembers of functions: `init_process_group` would, and copy the pages for that."""
    clear = getattr(sys.modules.get("torch._dynamo.trace_rules"), "clear_lru_cache", None)
    if clear is not None:
        clear()


def _is_built_for_accelerator() -> bool:
    import torch

    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:
        # torch 2.6, built for one, on a machine without.
        return True
