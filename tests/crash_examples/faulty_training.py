# ruff: noqa: SIM115 - what is left open here is part of the fault
"""A small training that breaks in a given way: `faulty_training.py FAULT [--at STEP] [--rank RANK]`. For provoke.py."""

from __future__ import annotations

import argparse
import ctypes
import errno
import faulthandler
import json
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(os.environ.get("JOB_DIR", "."))


class Batches(Dataset[torch.Tensor]):
    """`fault` runs where item 3 is read."""

    def __init__(self, fault: Callable[[], Any] | None = None, items: int = 8) -> None:
        self.fault = fault
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3 and self.fault:
            self.fault()
        return torch.ones(4)


class Network(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(batch))).mean()


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def load(fault: Callable[[], Any], **options: Any) -> None:
    for _ in DataLoader(Batches(fault), batch_size=2, num_workers=2, **options):
        pass


def worker_index() -> None:
    load(lambda: [1, 2][7])


def worker_key() -> None:
    load(lambda: {"text": 1}["tokens"])


def worker_decode() -> None:
    load(lambda: json.loads("{'a': 1"))


def worker_missing_file() -> None:
    load(lambda: open(HERE / "shard-00007.bin", "rb"))


def worker_exits() -> None:
    load(lambda: os._exit(1))


def worker_killed() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def worker_segfault() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def worker_bus_error() -> None:
    load(lambda: os.kill(os.getpid(), signal.SIGBUS))


def worker_hangs() -> None:
    load(lambda: time.sleep(60), timeout=2)


def worker_eio() -> None:
    load(eio)


def worker_out_of_shared_memory() -> None:
    class Large(Batches):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(4 << 20)

    for _ in DataLoader(Large(), batch_size=4, num_workers=2):
        pass


def eio() -> None:
    with open("/proc/self/mem", "rb") as file:
        file.read(8)


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


def segfault() -> None:
    ctypes.string_at(8)


def segfault_told() -> None:
    faulthandler.enable()
    ctypes.string_at(8)


def abort() -> None:
    libc().abort()


def abort_told() -> None:
    faulthandler.enable()
    libc().abort()


def illegal_instruction() -> None:
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGILL)


def floating_point() -> None:
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGFPE)


def double_free() -> None:
    library = libc()
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    block = library.malloc(2000)
    library.malloc(16)
    library.free(block)
    library.free(block)


def bus_error() -> None:
    faulthandler.enable()
    with tempfile.TemporaryFile(dir=HERE) as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        print(view[5000])


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def exits() -> None:
    os._exit(7)


def exits_with_words() -> None:
    sys.exit("giving up")


def bad_alloc() -> None:
    torch.empty(1 << 50)


def memory_error() -> None:
    limit = 3 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    kept = [bytearray(1 << 30) for _ in range(16)]
    print(len(kept))


def numpy_memory() -> None:
    import numpy

    limit = 3 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    numpy.ones((1 << 20, 1 << 13))


def open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [open("/dev/null") for _ in range(100)]
    print(len(kept))


def threads() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for _ in range(64):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()


def disk_full() -> None:
    (HERE / "small" / "log.bin").write_bytes(b"x" * (8 << 20))


def disk_full_checkpoint() -> None:
    torch.save({"weight": torch.ones(4 << 20)}, HERE / "small" / "step-3.pt")


def read_only() -> None:
    (HERE / "small" / "step-3.pt").write_bytes(b"x")


def mount_lost() -> None:
    os.listdir(HERE / "small")


def permission() -> None:
    (HERE / "private").mkdir(mode=0o700, exist_ok=True)
    os.setuid(65534)
    open(HERE / "private" / "step-3.pt", "wb")


def missing_file() -> None:
    torch.load(HERE / "checkpoints" / "step-100.pt")


def _checkpoint() -> Path:
    path = HERE / "step-2.pt"
    torch.save({"weight": torch.ones(1 << 16)}, path)
    return path


def truncated_checkpoint() -> None:
    path = _checkpoint()
    os.truncate(path, 100_000)
    torch.load(path)


def empty_checkpoint() -> None:
    path = HERE / "empty.pt"
    path.touch()
    torch.load(path)


def garbage_checkpoint() -> None:
    path = HERE / "garbage.pt"
    path.write_bytes(b"<html>not found</html>")
    torch.load(path, weights_only=False)


def truncated_pickle() -> None:
    path = HERE / "state.pkl"
    path.write_bytes(pickle.dumps(list(range(1000)))[:200])
    with open(path, "rb") as file:
        pickle.load(file)


def truncated_safetensors() -> None:
    from safetensors.torch import load_file, save_file

    path = HERE / "model.safetensors"
    save_file({"weight": torch.ones(64)}, path)
    os.truncate(path, 40)
    load_file(path)


def weights_only() -> None:
    path = HERE / "pickled.pt"
    torch.save({"when": HERE}, path)
    torch.load(path)


def other_shapes() -> None:
    Network(8).load_state_dict(Network(16).state_dict())


def other_keys() -> None:
    Network().load_state_dict({"embedding.weight": torch.ones(3)})


def other_optimizer() -> None:
    state = torch.optim.Adam([{"params": [torch.ones(1)]}, {"params": [torch.ones(2)]}]).state_dict()
    torch.optim.Adam(Network().parameters()).load_state_dict(state)


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


def unset_environment() -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def unset_rank() -> None:
    os.environ.pop("LOCAL_RANK", None)
    _ = int(os.environ["LOCAL_RANK"])


def port_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        dist.TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=2))


def port_taken_by_script() -> None:
    with socket.socket() as taken, socket.socket() as again:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        again.bind(taken.getsockname())


def nobody_joins() -> None:
    dist.TCPStore("127.0.0.1", 0, 4, True, timedelta(seconds=2))


def master_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=2))


def host_unknown() -> None:
    socket.create_connection(("storage.invalid", 443))


def no_network() -> None:
    socket.create_connection(("10.1.2.3", 443), timeout=2)


def _served(answer: int) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/api/runs"


def http_503() -> None:
    import requests

    requests.get(_served(503)).raise_for_status()


def http_502_urllib() -> None:
    urllib.request.urlopen(_served(502)).read()


def http_401() -> None:
    import requests

    requests.get(_served(401)).raise_for_status()


def http_429() -> None:
    import requests

    requests.get(_served(429)).raise_for_status()


def http_unresolved() -> None:
    import requests

    requests.get("https://api.tracker.invalid/graphql", timeout=2)


def _bucket(fault: str) -> None:
    import boto3
    import botocore.config
    from moto import mock_aws

    with mock_aws():
        client = boto3.client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id=None if fault == "credentials" else "a",
            aws_secret_access_key=None if fault == "credentials" else "b",
        )
        client.create_bucket(Bucket="data")
        client.get_object(Bucket="data" if fault == "key" else "other", Key="shard-7")
    del botocore


def s3_no_key() -> None:
    _bucket("key")


def s3_no_bucket() -> None:
    _bucket("bucket")


def _s3(url: str, **options: Any) -> None:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=1, read_timeout=1, retries={"max_attempts": 0})
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=url, config=config, **options)
    client.get_object(Bucket="data", Key="shard-7")


def s3_unreachable() -> None:
    _s3("http://storage.invalid:9000", aws_access_key_id="a", aws_secret_access_key="b")


def s3_credentials() -> None:
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    _s3("http://127.0.0.1:9")


def s3_slow_down() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = b"<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"
            body = b"<?xml version='1.0'?><Error>" + said + b"</Error>"
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _s3(f"http://127.0.0.1:{server.server_port}", aws_access_key_id="a", aws_secret_access_key="b")


def chained() -> None:
    try:
        disk_full_checkpoint()
    except Exception as error:
        raise RuntimeError("the checkpoint of step 3 could not be saved") from error


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


def hangs() -> None:
    time.sleep(60)


def stack_timer() -> None:
    faulthandler.dump_traceback_later(1, exit=True)
    time.sleep(10)


def other_collective() -> None:
    dist.barrier()


def survives() -> None:
    """Prints what looks like trouble, and trains on."""
    try:
        torch.empty(1 << 50)
    except RuntimeError:
        import traceback

        traceback.print_exc()
    print("warning: CUDA out of memory, skipping batch 17", flush=True)


FAULTS: dict[str, Callable[[], Any]] = {
    name: thing for name, thing in list(globals().items()) if callable(thing) and name.islower() and name != "load"
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=sorted(FAULTS))
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--rank", type=int, default=-1, help="the rank that breaks; -1: all")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--timeout-s", type=float, default=20)
    parser.add_argument("--barrier-s", type=float, default=0, help="a monitored barrier before each step")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    torch.manual_seed(0)
    network = Network()
    for step in range(args.steps):
        if step == args.at and args.rank in (-1, rank):
            FAULTS[args.fault]()
        if args.barrier_s:
            dist.monitored_barrier(timeout=timedelta(seconds=args.barrier_s))
        loss = network(torch.ones(4))
        loss.backward()
        for weight in network.parameters():
            if world > 1:
                dist.all_reduce(weight.grad)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} lr 0.001", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    del errno
    main()
