"""The example scripts as ranks of a job, in children that have the simulated device."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
import torch.distributed as dist

EXAMPLES = Path(__file__).parents[3] / "examples"
On = Literal["cpu", "sim"]


def run(rank: int, size: int, on: On, script: str, args: tuple[str, ...], port: int, extra: Mapping[str, str]) -> str:
    """Run an example as this rank; return what it printed."""
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The simulated machine has one device, and ranks share it.
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(size),
        **extra,
    }
    output = io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(mock.patch.object(sys, "argv", [script, *args]))
        stack.enter_context(mock.patch.object(sys, "path", [str((EXAMPLES / script).parent), *sys.path]))
        stack.callback(_forget_modules)
        stack.enter_context(contextlib.redirect_stdout(output))
        if on == "cpu":
            stack.enter_context(mock.patch.object(torch.accelerator, "is_available", return_value=False))
        try:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return output.getvalue()


def _forget_modules() -> None:
    """Let the next script import its own neighbours."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{EXAMPLES}/"):
            del sys.modules[name]
