"""Pickles of plain values, read without running code of their author's choice.

An operator exports and imports what others have written, often as root. So only names that make values are looked up:
numbers, texts, containers, tensors, arrays, and the descriptions in a checkpoint of torch.distributed.checkpoint. The
module has the names that `torch.load` needs of a `pickle_module`.
"""

from __future__ import annotations

import io
import pickle
from typing import IO, Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo

_KNOWN = {
    "builtins": {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set"}
    | {"slice", "str", "tuple"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "types": {"SimpleNamespace"},
    "argparse": {"Namespace"},
    "torch": {"Size", "device", "Tensor"},
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"},
    "torch.serialization": {"_get_layout"},
    **{f"numpy.{core}.multiarray": {"_reconstruct", "scalar"} for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": {"_frombuffer"} for core in ("core", "_core")},
    "numpy": {"dtype", "ndarray"},
    "torch.distributed.checkpoint.filesystem": {_StorageInfo.__name__},
    "torch.distributed.checkpoint.metadata": {
        name for name, what in vars(metadata).items() if isinstance(what, type) and what.__module__ == metadata.__name__
    },
}


class RunsCode(pickle.UnpicklingError):
    """A pickle names what is no plain value; to load it may run any code."""


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) == ("_codecs", "encode"):
            return _bytes
        found = module == "torch" and getattr(torch, name, None)
        if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
            return found
        if name not in _KNOWN.get(module, ()) and not _is_storage(module, name):
            raise RunsCode(f"it needs {module}.{name}, and to load that may run code of its author; --trust allows it")
        return super().find_class(module, name)


def load(file: IO[bytes], **options: Any) -> Any:
    """Return the value of the file's pickle. Raises RunsCode, or whatever a damaged one does."""
    return Unpickler(file, **options).load()


def loads(data: bytes | memoryview, **options: Any) -> Any:
    """Return the value of a pickle. Raises RunsCode, or whatever a damaged one does."""
    return load(io.BytesIO(data), **options)


def _is_storage(module: str, name: str) -> bool:
    return module in ("torch", "torch.storage") and isinstance(getattr(torch, name, None), type) and "Storage" in name


def _bytes(text: str, _: str) -> bytes:
    """Return what older protocols write as text."""
    return text.encode("latin1")


def _storage(data: bytes) -> Any:
    import holdfast.trainer.checkpoint.exchange.plain_pickle as itself

    return torch.load(io.BytesIO(data), weights_only=False, pickle_module=itself)
