"""Signatures of failures in the output of running ranks, as data.

A match is a hint only: a rank's cause of death is classified from its whole output after it exits. All output of all
ranks passes this scan. So plain substrings come first (0.5 ms per MB for each; one regular expression for all takes 40
ms), and patterns run only on lines that contain one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from holdfast.symptoms import Symptom

LINE_BYTES_MAX = 8_192
LINE_CHARS_MAX = 500
"""Maximum length of a reported line."""
GATHERED_BYTES = 4_096
GATHERED_S = 0.1
"""Scan once this much has arrived, or this long after the last scan: scanning line by line costs twice as much."""
LOOKS_A_SECOND_MAX = 100
"""Substring hits examined per second; more are not counted, so that a rank that prints only errors costs no more."""


class Signature(NamedTuple):
    """A line that matches `pattern` but not `unless` indicates `symptom`; "" for no particular one."""

    name: str
    symptom: str
    pattern: re.Pattern[bytes]
    unless: re.Pattern[bytes] | None = None


def _signature(name: str, symptom: str, pattern: bytes, unless: bytes | None = None) -> Signature:
    return Signature(name, symptom, re.compile(pattern), None if unless is None else re.compile(unless))


_ERRORS = (
    # The first match wins.
    _signature("nccl_timeout", Symptom.JOB_HANG, rb"[Ww]atchdog caught collective operation timeout"),
    _signature(
        "infiniband_error", Symptom.INFINIBAND_ERROR, rb"NCCL WARN NET/IB|ibv_\w+ failed|mlx5.*(?:error|timed? ?out)"
    ),
    _signature("xid_memory", Symptom.GPU_MEMORY_ERROR, rb"Xid \(PCI:[^)]*\): (?:48|63|64|92|94|95)\b"),
    _signature("xid_lost", Symptom.GPU_UNAVAILABLE, rb"Xid \(PCI:[^)]*\): 79\b|fallen off the bus"),
    _signature("xid", Symptom.CUDA_ERROR, rb"Xid \(PCI:[^)]*\): \d+"),
    _signature("gpu_memory_error", Symptom.GPU_MEMORY_ERROR, rb"[Uu]ncorrectable ECC|double bit ECC|MULTI BIT ECC"),
    _signature(
        "gpu_unavailable", Symptom.GPU_UNAVAILABLE, rb"no CUDA-capable device|No CUDA GPUs are available|GPU is lost"
    ),
    _signature(
        "cuda_error",
        Symptom.CUDA_ERROR,
        rb"CUDA (?:driver )?error|cudaError[A-Z]\w+|(?:CUDA|HIP|NPU) out of memory"
        rb"|HIP error|HW Exception by GPU|HSA_STATUS_ERROR_|NPU (?:function )?error",
    ),
    _signature(
        "disk_full", Symptom.INSUFFICIENT_DISK_SPACE, rb"No space left on device|Disk quota exceeded|\[Errno 28\]"
    ),
    _signature(
        "file_system", Symptom.FILESYSTEM_MOUNT, rb"Stale (?:NFS )?file handle|Transport endpoint is not connected"
    ),
    _signature("disk_fault", Symptom.DISK_FAULT, rb"Errno 5\]|Input/output error|Read-only file system"),
    _signature("memory", Symptom.CPU_OOM, rb"Cannot allocate memory|DataLoader worker \(pid.*killed by signal: Killed"),
    _signature(
        "hdfs_error",
        Symptom.HDFS_ERROR,
        rb"DFSClient|hadoop\.\S*Exception|hdfs://\S+: .*rror",
    ),
    _signature(
        "external_service_error",
        Symptom.EXTERNAL_SERVICE_ERROR,
        rb"botocore\.exceptions|\(SlowDown\)|Max retries exceeded|HTTPError: (?:429|5\d\d)|\b50[0234] Server Error",
    ),
    _signature("nccl_error", "", rb"ncclSystemError|ncclRemoteError|ncclInternalError|NCCL WARN|NCCL error"),
    _signature("connection_lost", "", rb"Connection (?:reset|closed) by (?:remote )?peer|Connection refused"),
)
_NOT_A_NUMBER = (
    _signature(
        "nan_value",
        Symptom.NAN_VALUE,
        # As trainers print it: `lm loss: NAN |`, `'loss': nan`, `train_loss=nan`, `loss tensor(nan, ...)`.
        rb"(?i)loss['\"]?\s{0,3}[:=]?\s{0,3}(?:tensor\()?[-+]?nan(?![a-z\d])",
        unless=rb"(?i)(?:eval|val|valid|validation|test|dev|best|min)\w*[ _/.-]{0,3}(?:[a-z]+[ _/.-])?loss",
    ),
)
_TRACEBACK = (_signature("traceback", "", rb"Traceback \(most recent call last\)"),)


class Anchor(NamedTuple):
    """A substring required in a line before `signatures` are tried, on the whole line or on `bytes_before` bytes."""

    text: bytes
    signatures: tuple[Signature, ...]
    bytes_before: int | None = None


ANCHORS = (
    Anchor(b"rror", _ERRORS),
    Anchor(b"xception", _ERRORS),
    Anchor(b"NCCL WARN", _ERRORS),
    Anchor(b"Xid (", _ERRORS),
    Anchor(b"atchdog", _ERRORS),
    Anchor(b"space left", _ERRORS),
    Anchor(b"Traceback (", _TRACEBACK),
    # Some trainers print `number of nan iterations: 0` in every line.
    Anchor(b"nan", _NOT_A_NUMBER, 48),
    Anchor(b"NaN", _NOT_A_NUMBER, 48),
    Anchor(b"NAN", _NOT_A_NUMBER, 48),
)

OnMatch = Callable[[Signature, str], None]


class Scanner:
    """Scanner for one output stream; calls `on_match` for each matching line."""

    def __init__(self, on_match: OnMatch) -> None:
        self._on_match = on_match
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._looked_at = -GATHERED_S
        self._partial = b""
        self._second = 0
        self._looks_left = LOOKS_A_SECOND_MAX

    def feed(self, data: bytes, now: float) -> None:
        """Add output. `now` is a clock in seconds."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= GATHERED_BYTES or now - self._looked_at >= GATHERED_S:
            self.look(now)

    @property
    def due_at(self) -> float | None:
        """Time of the next scan; None without pending output."""
        return self._looked_at + GATHERED_S if self._gathered else None

    def look(self, now: float) -> None:
        if not self._gathered:
            return
        data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        self._gathered, self._gathered_bytes, self._looked_at = [], 0, now
        if int(now) != self._second:
            self._second, self._looks_left = int(now), LOOKS_A_SECOND_MAX
        end = data.rfind(b"\n") + 1
        if end:
            self._scan(self._partial + data[:end] if self._partial else data[:end])
            self._partial = data[end:]
            return
        self._partial += data
        if len(self._partial) > LINE_BYTES_MAX:
            # Progress bars end no line: text beyond the maximum length counts as a line.
            self._scan(self._partial)
            self._partial = b""

    def _scan(self, text: bytes) -> None:
        reported: set[int] = set()
        for anchor in ANCHORS:
            at = text.find(anchor.text)
            while at >= 0 and self._looks_left:
                self._looks_left -= 1
                # What a progress bar drew before it, over the same line, is not part of it.
                start = max(text.rfind(b"\n", 0, at) + 1, text.rfind(b"\r", 0, at) + 1, at - LINE_BYTES_MAX)
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                if anchor.bytes_before is None:
                    line, after = text[start : min(end, at + LINE_BYTES_MAX)], end
                else:
                    after = at + len(anchor.text)
                    line = text[max(start, at - anchor.bytes_before) : min(end, after + 1)]
                # A line may contain several of the substrings.
                found = None if start in reported else self._match(anchor, line)
                if found is not None:
                    reported.add(start)
                    whole, _, _ = text[start : start + LINE_CHARS_MAX].partition(b"\n")
                    self._on_match(found, whole.decode(errors="replace").strip())
                at = text.find(anchor.text, after)

    def _match(self, anchor: Anchor, text: bytes) -> Signature | None:
        for signature in anchor.signatures:
            if signature.pattern.search(text) and not (signature.unless and signature.unless.search(text)):
                return signature
        return None
