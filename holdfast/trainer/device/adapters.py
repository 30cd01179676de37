"""Adds what torch's device-agnostic interface lacks, for each kind of accelerator. No other file here names a kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from holdfast.trainer.device import has_accelerator

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all contexts of the process."""


class NotRegistered(RuntimeError):
    """The driver does not pin this memory; the message is its reason."""


class DeviceEvent(Protocol):
    """An event of the device; `record` and `wait` are for this thread's current stream."""

    def record(self) -> None: ...

    def wait(self) -> None:
        """Have the stream wait."""
        ...

    def synchronize(self) -> None:
        """Wait, without the interpreter's lock."""
        ...


class Adapter(Protocol):
    can_register: bool
    """Memory that another process made can be pinned here."""

    def event(self, device: torch.device) -> DeviceEvent:
        """Return an event that a thread of the host waits for without taking a processor, where there are such."""
        ...

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory, so that copies from the device go straight there. Raises NotRegistered."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        ...

    def is_capturing(self) -> bool:
        """Return True while the current stream's work is recorded into a graph instead of run."""
        ...

    def pci_address(self, device: torch.device) -> str | None:
        """Return where a device is on the PCI bus; None: that is not known."""
        ...


class Cuda:
    """CUDA, and ROCm, which torch shows under the same names."""

    can_register = True

    @property
    def _runtime(self) -> Any:
        # Not before it is needed: a context is made for the device that is current then.
        return torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def event(self, device: torch.device) -> DeviceEvent:
        # `torch.Event` drops `blocking`, and a host that waits for one spins.
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def register(self, address: int, nbytes: int) -> None:
        # An error that is not looked at shows up in the next call of anyone.
        self._check(self._runtime.cudaHostRegister(address, nbytes, PORTABLE), f"pin {nbytes} bytes")

    def unregister(self, address: int) -> None:
        self._check(self._runtime.cudaHostUnregister(address), "unpin memory")

    def is_capturing(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]

    def pci_address(self, device: torch.device) -> str | None:
        about: Any = torch.cuda.get_device_properties(device)
        # Earlier releases of torch lack them.
        if not hasattr(about, "pci_domain_id"):
            return None
        return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}"

    def _check(self, result: Any, what: str) -> None:
        if int(result) != 0:
            raise NotRegistered(f"the driver does not {what}: {self._runtime.cudaGetErrorString(result)}")


class ByModule:
    """An accelerator whose own module, `torch.NAME`, may have `register_host(address, nbytes)`, `unregister_host`
    and `pci_address(device)`.
    """

    def __init__(self, device_type: str) -> None:
        module = getattr(torch, device_type, None)
        self._register = getattr(module, "register_host", None)
        self._unregister = getattr(module, "unregister_host", None)
        self.can_register = self._register is not None and self._unregister is not None
        self._device_type = device_type

    def event(self, device: torch.device) -> DeviceEvent:
        return torch.Event(device)

    def register(self, address: int, nbytes: int) -> None:
        if self._register is None:
            raise NotRegistered("this kind of accelerator pins no memory of others")
        try:
            self._register(address, nbytes)
        except RuntimeError as error:
            raise NotRegistered(str(error)) from error

    def unregister(self, address: int) -> None:
        if self._unregister is not None:
            self._unregister(address)

    def pci_address(self, device: torch.device) -> str | None:
        ask = getattr(getattr(torch, self._device_type, None), "pci_address", None)
        return ask(device) if ask is not None else None

    def is_capturing(self) -> bool:
        if not is_in_use(self._device_type):
            return False
        stream = torch.accelerator.current_stream()
        return bool(stream.is_capturing()) if hasattr(stream, "is_capturing") else False


def adapter_of(device_type: str) -> Adapter:
    return Cuda() if device_type == "cuda" else ByModule(device_type)


def accelerator_type() -> str | None:
    """Return the type of this process's accelerator, such as "cuda"; None: there is none."""
    if not has_accelerator():
        return None
    device = torch.accelerator.current_accelerator()
    return device.type if device is not None else None


def is_in_use(device_type: str) -> bool:
    """Return True if this process has begun to use this accelerator."""
    return bool(getattr(getattr(torch, device_type, None), "is_initialized", lambda: True)())


def stream_in_use() -> torch.Stream | None:
    """Return this thread's stream on the accelerator; None: there is none, or this process has not used it."""
    kind = accelerator_type()
    if kind is None or not is_in_use(kind):
        return None
    return torch.accelerator.current_stream()


@contextmanager
def on_stream(stream: torch.Stream | None) -> Iterator[None]:
    """Have this thread use a stream, and its device; None: nothing changes."""
    if stream is None:
        yield
        return
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, in bytes; None: it does not report it."""
    module = getattr(torch, device.type, None)
    for place in (torch.accelerator, module):
        ask = getattr(place, "get_memory_info", None) or getattr(place, "mem_get_info", None)
        if ask is None:
            continue
        try:
            return int(ask(device)[0])
        except (RuntimeError, NotImplementedError):
            continue
    return None
