"""A machine whose matrix products have one wrong bit: found by every Python that has this directory in its PYTHONPATH.

It takes the place of torch's own kernel as soon as torch is imported, below everything that multiplies matrices.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_kept: list[Any] = []


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        assert found is not None and found.loader is not None
        self._loader, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _break(module)


def _break(torch: Any) -> None:
    def mm(left: Any, right: Any) -> Any:
        found = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype)
        torch.ops.aten.mm.out(left, right, out=found)
        if found.dtype == torch.float32 and found.numel() > 101:
            found.view(torch.int32).view(-1)[101] ^= 1 << 12
        return found

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", mm, "CPU")
    _kept.append(library)


sys.meta_path.insert(0, _AfterTorch())
