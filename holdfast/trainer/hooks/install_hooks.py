"""Hooks that fill the ledger of a script that knows nothing of Holdfast.

They are put in place while torch is being imported (or at once, if it is imported already), so a script may still set
environment variables before its own `import torch`. Modules that import a collective by name get the hooked one.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from holdfast.node.rank_variables import MEMORY_CHECKPOINTS, STORE_PREFIX
from holdfast.trainer.ahead import device_used
from holdfast.trainer.hooks import flight_recorder, kernel_starts
from holdfast.trainer.hooks.collective_hooks import patch_process_groups, put_marks, recorded_call
from holdfast.trainer.hooks.ddp_times import note_buckets, patch_ddp
from holdfast.trainer.hooks.group_ends import after_last_collective
from holdfast.trainer.hooks.log_hooks import patch_event_files
from holdfast.trainer.phases import binding
from holdfast.trainer.replay_run import make_deterministic
from holdfast.trainer.spawned.parent import patch_spawn
from holdfast.trainer.steps import frameworks, loads, optimizer_steps, saves
from holdfast.trainer.steps.guard import harmless

COLLECTIVES = (
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)
"""Calls of torch.distributed that can wait for another rank; names that a release lacks are passed over."""


def install() -> None:
    """Put the hooks in place, now or when torch is imported. A second call changes nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, patch in _PATCHES.items():
        module = sys.modules.get(name)
        if module is not None:
            _patch(module, patch)
            _republish(module)


def install_for_steps() -> _Finder:
    """Put the hooks in place that show steps, in a process that a rank has spawned, before it imports torch."""
    for name in set(_PATCHES) - _SHOW_STEPS:
        del _PATCHES[name]
    _PATCHES["torch"] = _patch_files
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    return finder


def keep_checkpoints(*, torch_is_there: bool = False) -> None:
    """Switch memory checkpoints on if the job wants them: as soon as there is torch, which a rank may have from its
    zygote.
    """
    if os.environ.get(MEMORY_CHECKPOINTS) == "1" and (torch_is_there or "torch" in sys.modules):
        from holdfast.trainer.write_behind.switch_on import start

        start()


def also(name: str, patch: Callable[[ModuleType], None]) -> None:
    """Hook a module of others besides, now or when it is imported. A failure of the hook leaves the module as it is."""
    install()
    before = _PATCHES.get(name)
    safe = harmless(patch)

    def both(module: ModuleType) -> None:
        if before is not None:
            _patch(module, before)
        safe(module)

    _PATCHES[name] = both
    if (module := sys.modules.get(name)) is not None:
        safe(module)


def _republish(module: ModuleType) -> None:
    """Give the package that re-exports a module's names the hooked ones."""
    package = sys.modules.get("torch.distributed")
    if package is None or module.__name__ != "torch.distributed.distributed_c10d":
        return
    for name in (*COLLECTIVES, "init_process_group"):
        if hasattr(package, name) and hasattr(module, name):
            setattr(package, name, getattr(module, name))


def _patch_distributed(module: ModuleType) -> None:
    for name in COLLECTIVES:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, recorded_call(original, name.encode(), getattr(module, "Work", object)))
    module.init_process_group = _in_rendezvous(module.init_process_group)  # type: ignore[attr-defined]
    module.destroy_process_group = after_last_collective(module.destroy_process_group)  # type: ignore[attr-defined]
    if hasattr(module, "Work"):
        patch_process_groups(module)


def _patch_rendezvous(module: ModuleType) -> None:
    """Keep the job's keys in the generation's store apart from those of any process that can connect to it."""
    original = getattr(module, "_create_c10d_store", None)
    if original is None:
        return

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        store = original(*args, **kwargs)
        prefix = os.environ.get(STORE_PREFIX)
        if not prefix:
            return store
        from torch._C._distributed_c10d import PrefixStore

        return PrefixStore(prefix, store)

    module._create_c10d_store = create  # type: ignore[attr-defined]


def _patch_optimizer(module: ModuleType) -> None:
    # Runs before training is held at the end of the step.
    module.register_optimizer_step_post_hook(note_buckets)
    optimizer_steps.hook(module)
    module.register_optimizer_step_post_hook(device_used.stepped)


def _in_rendezvous(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        ledger = binding.ledger
        if ledger is None:
            return original(*args, **kwargs)
        before = ledger.enter_phase("rendezvous")
        if kernel_starts.choose(os.environ):
            put_marks(kernel_starts.Marks(kernel_starts.Cuda()))
        try:
            made = original(*args, **kwargs)
        finally:
            ledger.enter_phase(before)
        flight_recorder.serve(ledger.path)
        return made

    return call


def _patch_torch(module: ModuleType) -> None:
    if binding.recorder is not None:
        make_deterministic(module)
    _patch_files(module)
    keep_checkpoints(torch_is_there=True)


def _patch_files(module: ModuleType) -> None:
    harmless(loads.patch_torch_load)(module)
    harmless(saves.patch_torch_save)(module)


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.distributed.distributed_c10d": _patch_distributed,
    "torch.distributed.rendezvous": _patch_rendezvous,
    "torch.nn.parallel.distributed": patch_ddp,
    "torch.optim.optimizer": _patch_optimizer,
    "tensorboard.summary.writer.event_file_writer": patch_event_files,
    "torch": _patch_torch,
    "multiprocessing.spawn": patch_spawn,
    "torch.distributed.checkpoint": loads.patch_dcp,
    "safetensors.torch": loads.patch_safetensors,
    "accelerate.accelerator": loads.patch_accelerator,
    **frameworks.PATCHES,
}
_SHOW_STEPS = {
    "torch.optim.optimizer",
    "torch.distributed.checkpoint",
    "safetensors.torch",
    "accelerate.accelerator",
    *frameworks.PATCHES,
}
_OF_OTHERS = {
    "torch.distributed.checkpoint",
    "safetensors.torch",
    "accelerate.accelerator",
    "multiprocessing.spawn",
    *frameworks.PATCHES,
}
"""Modules that may lack what is hooked in their release: scripts run without these hooks then."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to be hooked as the other finders do, and hooks them after they ran."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = _PATCHES.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _hook_loader(spec.loader, patch)
                return spec
        return None


def _patch(module: ModuleType, patch: Callable[[ModuleType], None]) -> None:
    (harmless(patch) if module.__name__ in _OF_OTHERS else patch)(module)


def _hook_loader(loader: Any, patch: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _patch(module, patch)

    loader.exec_module = exec_module
