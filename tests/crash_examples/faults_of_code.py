"""Ways to break a training by its own code, settings and environment."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
from faulty_model import Network

HERE = Path(os.environ.get("JOB_DIR", "."))


def type_error() -> None:
    Network()(torch.ones(4), mask=None)


def index_error() -> None:
    _ = [1, 2, 3][10]


def key_error() -> None:
    _ = {"input_ids": 1}["labels"]


def attribute_error() -> None:
    Network().third(torch.ones(4))  # type: ignore[operator]


def name_error() -> None:
    undefined_function(3)  # type: ignore[name-defined]  # noqa: F821


def unbound_local() -> None:
    if os.environ.get("NEVER_SET"):
        scale = 1.0
    print(scale)


def zero_division() -> None:
    _ = 1 / (len([]))


def assertion() -> None:
    sequence, limit = 4096, 2048
    assert sequence <= limit, f"sequence {sequence} is longer than {limit}"


def not_divisible() -> None:
    heads, hidden = 12, 1000
    if hidden % heads:
        raise ValueError(f"hidden size {hidden} is not divisible by the number of heads {heads}")


def not_implemented() -> None:
    raise NotImplementedError("rotary embedding with this attention")


def recursion() -> None:
    def deeper(depth: int) -> int:
        return deeper(depth + 1) + 1

    deeper(0)


def unicode_decode() -> None:
    b"\xff\xfe\xfa".decode("utf-8")


def json_decode() -> None:
    json.loads('{"lr": 1e-4,}')


def yaml_settings() -> None:
    import yaml

    yaml.safe_load("model:\n  layers: 12\n width: [1, 2\n")


def toml_settings() -> None:
    import tomllib

    tomllib.loads("lr = 1e-4\n[model\n")


def pickling() -> None:
    multiprocessing.get_context("spawn").Process(target=lambda: None).start()


def shapes() -> None:
    _ = torch.ones(4, 8) @ torch.ones(16, 4)


def stacking() -> None:
    torch.stack([torch.ones(3), torch.ones(4)])


def in_place() -> None:
    weight = torch.ones(3, requires_grad=True)
    root = weight.exp()
    root += 1
    root.sum().backward()


def backward_twice() -> None:
    loss = Network()(torch.ones(4))
    loss.backward()
    loss.backward()


def cuda_missing() -> None:
    torch.zeros(1, device="cuda")


def nan_anomaly() -> None:
    with torch.autograd.set_detect_anomaly(True):
        weight = torch.zeros(3, requires_grad=True)
        (torch.sqrt(weight) * 0).sum().backward()


def nan_stop() -> None:
    print("Loss is nan, stopping training", flush=True)
    sys.exit(1)


def nan_raise() -> None:
    raise FloatingPointError("loss is NaN at step 3")


def missing_module() -> None:
    import flash_attention_of_nobody  # type: ignore[import-not-found]  # noqa: F401


def missing_name() -> None:
    from torch.nn import AttentionOfNobody  # type: ignore[attr-defined]  # noqa: F401


def missing_library() -> None:
    ctypes.CDLL("libcudart.so.11.0")


def broken_library() -> None:
    (HERE / "fused.so").write_bytes(b"not a library")
    torch.ops.load_library(HERE / "fused.so")


def missing_ninja() -> None:
    from torch.utils.cpp_extension import load_inline

    load_inline("fused_op", cpp_sources="int f() { return 1 }")


def while_handling() -> None:
    try:
        key_error()
    except KeyError:
        raise ValueError("a batch without labels")  # noqa: B904


def group() -> None:
    raise ExceptionGroup("two shards failed", [IndexError("list index out of range"), KeyError("tokens")])


def in_a_thread() -> None:
    thread = threading.Thread(target=index_error)
    thread.start()
    thread.join()
    type_error()


def spawned() -> None:
    torch.multiprocessing.start_processes(_spawned, nprocs=2, start_method="fork")


def _spawned(index: int) -> None:
    if index == 1:
        key_error()
    time.sleep(0.5)
