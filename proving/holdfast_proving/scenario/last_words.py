"""How ranks end: exit status, exception and the end of their output, as such failures print them.

The texts are what the rules of `holdfast.engines.crash` are made for. A fault names its words in a scenario.
"""

from __future__ import annotations

import msgspec

from holdfast.events.parts.ranks import RankException


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one rank."""

    exit_code: int | None = None
    signal: int | None = None
    exception: RankException | None = None
    log_tail: str = ""


def _raised(type_: str, message: str, line: str) -> LastWords:
    trace = (
        f'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    {line}\n{type_}: {message}'
    )
    return LastWords(exit_code=1, exception=RankException(type=type_, message=message, traceback=trace), log_tail=trace)


_CUDA = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)

LAST_WORDS: dict[str, LastWords] = {
    "killed": LastWords(signal=9),
    "segfault": LastWords(signal=11, log_tail="Fatal Python error: Segmentation fault\n"),
    "bus_error": LastWords(signal=7, log_tail="Bus error (core dumped)\n"),
    "ecc": _raised("RuntimeError", f"CUDA error: uncorrectable ECC error encountered{_CUDA}", "loss.backward()"),
    "no_device": _raised(
        "RuntimeError", f"CUDA error: invalid device ordinal{_CUDA}", "torch.cuda.set_device(local_rank)"
    ),
    "gpu_lost": _raised("RuntimeError", f"CUDA error: unspecified launch failure{_CUDA}", "torch.cuda.synchronize()"),
    "illegal_access": _raised(
        "RuntimeError", f"CUDA error: an illegal memory access was encountered{_CUDA}", "loss.backward()"
    ),
    "nccl_net": _raised(
        "torch.distributed.DistBackendError",
        "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL version 2.21.5\nncclSystemError: "
        "System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nNET/IB : Got "
        "completion from peer 10.0.0.7 with status=12 opcode=0 len=0 vendor err 129",
        "dist.all_reduce(grad)",
    ),
    "read_only": _raised("OSError", "[Errno 30] Read-only file system: '/data/cache/shard-0012'", "open(path, 'wb')"),
    "disk_full": _raised("OSError", "[Errno 28] No space left on device: '/data/cache/shard-0012'", "file.write(a)"),
    "peer": _raised(
        "torch.distributed.DistBackendError",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:41876",
        "dist.all_reduce(grad)",
    ),
    "script": _raised("ValueError", "too many values to unpack (expected 2)", "tokens, mask = batch"),
    "no_data": _raised("FileNotFoundError", "[Errno 2] No such file or directory: '/data/tokens'", "open(path)"),
    "bad_record": _raised("IndexError", "index out of range in self", "self.embedding(tokens)"),
    "service": LastWords(
        exit_code=1,
        log_tail='Traceback (most recent call last):\n  File "train.py", line 41, in <module>\n    fetch(url)\n'
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable\n",
    ),
}

ACCUSING = ("ecc",)
"""Those in which a rank reports that its machine is broken."""
