"""What is written later is byte for byte what `torch.save` writes at once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.trainer.write_behind.torch_format import NotDeferrable, collect, write


def _state() -> dict[str, Any]:
    weights = torch.arange(6000.0).reshape(60, 100)
    return {
        "w": weights,
        "tied": weights,
        "part": weights[3:5, ::2],
        "half": torch.ones(3).to(torch.bfloat16),
        "empty": torch.empty(0),
        "large": b"x" * 100_000,
        "args": {"lr": 1e-3, "ü": [None, True]},
    }


@pytest.mark.parametrize("name", ["ckpt.pt", "größe.pt", "without"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_is_the_one_of_torch(tmp_path: Path, name: str, protocol: int) -> None:
    for folder in ("torch", "later"):
        (tmp_path / folder).mkdir()
    torch.save(_state(), tmp_path / "torch" / name, pickle_protocol=protocol)
    collected = collect(_state(), protocol, no_byteorder=False)
    write(str(tmp_path / "later" / name), collected.records, list(collected.tensors))
    assert (tmp_path / "later" / name).read_bytes() == (tmp_path / "torch" / name).read_bytes()


def test_a_stream_is_the_one_of_torch(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save(_state(), stream)
    collected = collect(_state(), 2, no_byteorder=False)
    write(str(tmp_path / "x.ckpt"), collected.records, list(collected.tensors), is_named=False)
    assert (tmp_path / "x.ckpt").read_bytes() == stream.getvalue()


def test_what_torch_would_leave_out_is_left_to_torch() -> None:
    with torch.serialization.skip_data(), pytest.raises(NotDeferrable, match="skip_data"):
        collect(_state(), 2, no_byteorder=False)
