"""A checkpoint's tensors as safetensors files with an index, as Hugging Face lays models out.

The library needs all tensors of a file in memory at once; here one is at a time. So the files are written by hand:
eight bytes with the length of the header, the header in JSON, then the tensors without gaps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.trainer.checkpoint.exchange.contents import CheckpointContents, torch_dtype
from holdfast.trainer.checkpoint.exchange.export import OnBytes, Outgoing, appearing

INDEX = "model.safetensors.index.json"
PATHS = "holdfast.paths"
"""In a file's metadata: the paths of keys for which `default_path` gives another nesting."""

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def fits(outgoing: Outgoing) -> bool:
    """Return True if the format has a form for it: it has only tensors of the usual kinds."""
    return outgoing.value.dtype in DTYPES


def default_path(key: str) -> tuple[str, ...]:
    """Return the nesting of a module's tensor: the entry of the state, then the name that the module gives it."""
    root, dot, rest = key.partition(".")
    return (root, rest) if dot else (root,)


def distribute(outgoing: Iterable[Outgoing], shard_bytes_max: int) -> list[list[Outgoing]]:
    """Distribute tensors over files in order, as many as fit, at least one; in each the largest elements come first."""
    files: list[list[Outgoing]] = []
    room = 0
    for it in outgoing:
        if not files or it.value.nbytes > room:
            files.append([])
            room = shard_bytes_max
        files[-1].append(it)
        room -= it.value.nbytes
    # Without gaps, every tensor lies at a multiple of its element size only in this order.
    return [sorted(file, key=lambda it: -torch_dtype(it.value.dtype).itemsize) for file in files]


def header(file: Sequence[Outgoing], metadata: dict[str, str]) -> bytes:
    """Return the header of a file, padded so that the tensors begin at a multiple of eight."""
    described: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for it in file:
        end = offset + it.value.nbytes
        described[it.name] = {
            "dtype": DTYPES[it.value.dtype],
            "shape": list(it.value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def export_safetensors(
    contents: CheckpointContents, outgoing: Iterable[Outgoing], target: Path, *, shard_bytes_max: int, on_bytes: OnBytes
) -> None:
    """Write the tensors, all of which must fit the format."""
    files = distribute(outgoing, shard_bytes_max)
    names = list(_names(len(files)))
    with appearing(target) as draft:
        for name, file in zip(names, files, strict=True):
            _write(draft / name, contents, file, on_bytes)
        index = {
            "metadata": {"total_size": sum(it.value.nbytes for file in files for it in file)},
            "weight_map": {it.name: name for name, file in zip(names, files, strict=True) for it in file},
        }
        (draft / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _write(path: Path, contents: CheckpointContents, file: Sequence[Outgoing], on_bytes: OnBytes) -> None:
    paths = {it.name: it.path for it in file if it.path != default_path(it.name)}
    metadata = {"format": "pt", "holdfast.step": str(contents.manifest.step)}
    with open(path, "wb") as out:
        out.write(header(file, metadata | ({PATHS: json.dumps(paths)} if paths else {})))
        for it in file:
            flat = contents.tensor(it.value).contiguous().reshape(-1).view(torch.uint8)
            out.write(flat.numpy().data)
            on_bytes(it.value.nbytes)
        out.flush()
        os.fsync(out.fileno())


def _names(count: int) -> Iterator[str]:
    if count == 1:
        yield "model.safetensors"
        return
    for number in range(1, count + 1):
        yield f"model-{number:05d}-of-{count:05d}.safetensors"
