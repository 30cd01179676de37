"""`torch.save` into the vault: what it takes over, and what it leaves to torch."""

from __future__ import annotations

import functools
import logging
import os
import pickle
from types import ModuleType
from typing import Any

from holdfast.trainer.write_behind import disk_writes
from holdfast.trainer.write_behind.disk_writes import NotReplaceable
from holdfast.trainer.write_behind.engine import WriteBehind
from holdfast.trainer.write_behind.guards import Guards
from holdfast.trainer.write_behind.saved_files import Kind, SavedFile
from holdfast.trainer.write_behind.torch_format import NotDeferrable, collect

log = logging.getLogger("holdfast.trainer.checkpoint")

PROTOCOL = 2
"""Torch's default."""


class TorchSaves:
    def __init__(self, engine: WriteBehind, guards: Guards) -> None:
        self._engine = engine
        self._guards = guards
        self._reported = ""

    def patch(self, torch: ModuleType) -> None:
        """Have `torch.save` go through the vault; modules that have taken it by name before keep torch's own."""
        original = torch.save

        @functools.wraps(original)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if not self._engine.is_own_process or not isinstance(f, (str, os.PathLike)):
                original(obj, f, *args, **kwargs)
                return
            options = _options(*args, **kwargs)
            if options is None or not self.keep(obj, os.fspath(f), *options):
                # Torch opens it by C: the guards do not see that.
                self._engine.settle()
                original(obj, f, *args, **kwargs)

        torch.save = torch.serialization.save = save  # type: ignore[attr-defined]

    def keep(
        self, obj: object, path: Any, protocol: int = PROTOCOL, no_byteorder: bool = False, *, is_named: bool = True
    ) -> bool:
        """Keep what a file is to have; return False if the caller must write it, which is logged.

        Raises NotOnDisk if the save before could not be written, and what the pickling of the object raises.
        """
        if not isinstance(path, str):
            return False
        # What lies there may be on its way.
        self._engine.settle()
        try:
            target = disk_writes.target_of(path)
            collected = collect(obj, protocol, no_byteorder=no_byteorder)
            if not disk_writes.has_room(target.path, collected.nbytes):
                raise NotReplaceable(f"the disk has no room for {path}")
        except (NotDeferrable, NotReplaceable) as reason:
            self._tell(f"{path} goes straight to the disk: {reason}")
            return False
        file = SavedFile(
            path=target.path,
            kind=Kind.TORCH,
            records=collected.records,
            nbytes=collected.nbytes,
            before=target.before,
            mode=target.mode,
            is_named=is_named,
        )
        self._guards.put_in_place()
        if self._engine.keep([file], collected.tensors, [disk_writes.entry_of(path)]):
            return True
        self._tell(f"{path} goes straight to the disk: it is not kept in memory")
        return False

    def _tell(self, text: str) -> None:
        if text != self._reported:
            log.warning("%s", text)
            self._reported = text


def _options(
    pickle_module: Any = pickle,
    pickle_protocol: int = PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    **others: Any,
) -> tuple[int, bool] | None:
    """Return protocol and whether the order of bytes is left out; None for what is left to torch."""
    if pickle_module is not pickle or not _use_new_zipfile_serialization or others:
        return None
    return pickle_protocol, _disable_byteorder_record
