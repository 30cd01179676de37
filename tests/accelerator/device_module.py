"""`torch.sim`: what torch, DDP and FSDP2 expect of a device's module, beside `torch.accelerator`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch


def make(native: ModuleType) -> ModuleType:
    """Return the module; it has no state of its own."""
    module = ModuleType("torch.sim", __doc__)

    def current_stream(device: object = None) -> torch.Stream:
        return torch.accelerator.current_stream()

    def new_stream(device: object = None, priority: int = 0) -> torch.Stream:
        return torch.Stream("sim", priority=priority)

    def new_event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event("sim", enable_timing=enable_timing, blocking=blocking)

    @contextlib.contextmanager
    def stream(chosen: torch.Stream | None) -> Iterator[None]:
        before = current_stream()
        if chosen is not None:
            torch.accelerator.set_stream(chosen)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    @contextlib.contextmanager
    def device(index: object) -> Iterator[None]:
        yield

    def seed_all(seed: int) -> None:
        native.default_generator().manual_seed(seed)

    def rng_state(device: object = "sim") -> torch.Tensor:
        return native.default_generator().get_state()  # type: ignore[no-any-return]

    def set_rng_state(state: torch.Tensor, device: object = "sim") -> None:
        native.default_generator().set_state(state)

    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": native.is_started,
        # torch.utils.checkpoint keeps the random numbers of devices that have this.
        "_initialized": True,
        "_is_in_bad_fork": native.in_bad_fork,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "device": device,
        "synchronize": lambda device=None: torch.accelerator.synchronize(),
        "Stream": new_stream,
        "Event": new_event,
        "stream": stream,
        "current_stream": current_stream,
        "manual_seed": seed_all,
        "manual_seed_all": seed_all,
        "get_rng_state": rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [rng_state()],
        "set_rng_state_all": lambda states: set_rng_state(states[0]),
        "initial_seed": lambda: native.default_generator().initial_seed(),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "register_host": native.register_host,
        "unregister_host": native.unregister_host,
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module
