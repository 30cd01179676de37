"""Timings of single operations of a training job, as recorded on each worker, in columns. Pure.

One row is one operation on one worker (a data-parallel rank of a pipeline stage; its tensor-parallel ranks count as
one), in the format of ByteDance's straggler traces ("Understanding Stragglers in Large Model Training Using What-if
Analysis"): comma-separated text, gzip or not, or parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.trace_files import (
    PARQUET,
    Columns,
    OperationsUnreadable,
    columns_of,
    first_line,
)
from holdfast.engines.stragglers.traces.trace_meta import TraceMeta, read_meta

__all__ = ["Operations", "OperationsUnreadable", "looks_like_meta", "looks_like_operations", "read_operations"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)

_NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
_BAD_ROWS_MAX = 0.01
"""Share of rows without a usable time above which the whole file is rejected."""


_GAPS_MAX = 64
"""Ratio of workers without rows to workers with rows above which their numbers are not positions in the job."""


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Timings in columns of equal length, one row per operation. Times in seconds, each step's from its own origin."""

    name: str
    kinds: tuple[str, ...]
    """Names of the operations."""
    kind: Ints
    """Index in `kinds`."""
    dp_rank: Ints
    stage: Ints
    rank: Ints
    step: Ints
    start_s: Floats
    duration_s: Floats
    sequence: Ints
    """Number of the operation among those of its kind, worker and step, by start."""
    chunk: Ints
    """Virtual stage within the pipeline stage; -1 where it does not apply."""
    microbatch: Ints
    """-1 where it does not apply."""
    dp_size: int
    pp_size: int
    ranks_per_worker: int = 1
    """Global ranks per worker (tensor parallelism)."""
    warnings: tuple[str, ...] = ()

    @property
    def end_s(self) -> Floats:
        return self.start_s + self.duration_s

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        return np.equal(self.kind, self.kinds.index(kind) if kind in self.kinds else -1)


def looks_like_operations(head: bytes) -> bool:
    """True if a file that begins with `head` (at least 1 KiB) has timings of operations."""
    if head.startswith(PARQUET):
        return True
    columns = {column.strip().strip('"').lower() for column in first_line(head).split(",")}
    return len(columns & set(_NEEDED)) >= 4


def looks_like_meta(head: bytes) -> bool:
    """True if a file that begins with `head` has the sizes of such a trace's job, in YAML or JSON."""
    return b"dp_size" in head and b"pp_size" in head


def read_operations(data: bytes, name: str, meta: bytes = b"") -> Operations:
    """Read the timings of a file. `meta`: the content of the trace's meta file, if any. Raises OperationsUnreadable."""
    columns = columns_of(data, name)
    missing = [column for column in _NEEDED if column not in columns]
    if missing:
        raise OperationsUnreadable(
            f"{name}: no column {', '.join(missing)}; timings of operations have {', '.join(_NEEDED)}, "
            "and rank, seq_id, mc, gmc, mb_id where they apply"
        )
    return _operations(columns, name, read_meta(meta) if meta else TraceMeta())


def _operations(columns: Columns, name: str, meta: TraceMeta) -> Operations:
    dp_rank, stage, step = (_whole(columns[one], one, name) for one in ("dp_rank", "stage", "step"))
    start_s, duration_s = (_times(columns[one], one, name) for one in ("start_ts", "duration"))
    kinds, kind = _kinds(columns["optype"])
    optional = {
        one: _whole(columns[one], one, name) if one in columns else np.full(len(kind), -1, np.int64)
        for one in ("rank", "seq_id", "mc", "mb_id")
    }
    warnings: list[str] = []
    good = np.isfinite(start_s) & np.isfinite(duration_s) & (duration_s >= 0)
    good &= (dp_rank >= 0) & (stage >= 0) & (step >= 0)
    if bad := int(len(good) - good.sum()):
        row = int(np.argmin(good))
        problem = f"{bad} of {len(good)} rows have no time, a negative one, or no worker (the first: row {row + 1})"
        if bad > _BAD_ROWS_MAX * len(good):
            raise OperationsUnreadable(f"{name}: {problem}; record it again, or leave out the rows that are wrong")
        warnings.append(f"{problem}: left out")
    worker_rank = _first_rank(dp_rank, stage, optional["rank"])
    if (several := good & (optional["rank"] != worker_rank)).any():
        warnings.append("several ranks of a worker were recorded: the lowest stands for it")
        good &= ~several
    kept = np.flatnonzero(good)
    kept = kept[np.lexsort((start_s[kept], kind[kept], stage[kept], dp_rank[kept], step[kept]))]
    dp_size, pp_size = int(dp_rank[kept].max()) + 1, int(stage[kept].max()) + 1
    apart = _ranks_apart(worker_rank[kept])
    if why := _why_not(meta, dp_size, pp_size, apart):
        warnings.append(f"the meta file is of another job ({why}): not used")
        meta = TraceMeta()
    per_worker = meta.tp_size * meta.dsp_size or apart or 1
    found = Operations(
        name=name,
        kinds=kinds,
        kind=kind[kept],
        dp_rank=dp_rank[kept],
        stage=stage[kept],
        rank=worker_rank[kept],
        step=step[kept],
        start_s=start_s[kept],
        duration_s=duration_s[kept],
        sequence=optional["seq_id"][kept],
        chunk=optional["mc"][kept],
        microbatch=optional["mb_id"][kept],
        dp_size=dp_size,
        pp_size=pp_size,
        ranks_per_worker=per_worker,
    )
    return _completed(found, meta, warnings)


def _completed(found: Operations, meta: TraceMeta, warnings: list[str]) -> Operations:
    """Fill in what the file leaves out, as far as it follows from the rest."""
    sequence, chunk, microbatch = found.sequence, found.chunk, found.microbatch
    if (sequence < 0).any():
        key = np.stack((found.step, found.dp_rank, found.stage, found.kind))
        begins = np.flatnonzero(np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)])
        lengths = np.diff(np.r_[begins, len(sequence)])
        sequence = np.arange(len(sequence)) - np.repeat(begins, lengths)
    compute = found.of_kind(FORWARD) | found.of_kind(BACKWARD)
    if not compute.any():
        kinds = f"kinds found: {', '.join(found.kinds)}" if found.kinds else "no kinds found"
        raise OperationsUnreadable(f"{found.name}: neither {FORWARD} nor {BACKWARD} is in it ({kinds})")
    if not found.duration_s[compute].any():
        raise OperationsUnreadable(f"{found.name}: all its passes last 0 s; were durations written as whole seconds?")
    chunk = np.where(compute & (chunk < 0), 0, chunk)
    microbatch = np.where(compute & (microbatch < 0) & (chunk.max() < 1), sequence, microbatch)
    if (compute & (microbatch < 0)).any():
        raise OperationsUnreadable(f"{found.name}: virtual stages, and no mb_id that tells microbatches apart")
    workers = {*zip(found.dp_rank.tolist(), found.stage.tolist(), strict=True)}
    dp_size, pp_size = max(found.dp_size, meta.dp_size), max(found.pp_size, meta.pp_size)
    if dp_size * pp_size > _GAPS_MAX * len(workers):
        raise OperationsUnreadable(
            f"{found.name}: rows of {len(workers)} workers, but dp_rank goes up to {dp_size - 1} and stage to "
            f"{pp_size - 1}: these are numbers from 0 within the job, not global ranks"
        )
    if absent := dp_size * pp_size - len(workers):
        warnings.append(f"{absent} of {dp_size * pp_size} workers (data-parallel ranks x stages) have no rows")
    return msgspec.structs.replace(
        found,
        sequence=sequence,
        chunk=chunk,
        microbatch=microbatch,
        dp_size=dp_size,
        pp_size=pp_size,
        warnings=tuple(warnings),
    )


def _kinds(names: Sequence[Any]) -> tuple[tuple[str, ...], Ints]:
    spelled = {name: str(name).strip().lower().replace("_", "-") for name in set(names)}
    kinds = tuple(sorted(set(spelled.values())))
    number = {name: kinds.index(kind) for name, kind in spelled.items()}
    return kinds, np.fromiter((number[name] for name in names), np.int64, len(names))


def _times(values: Sequence[Any], column: str, name: str) -> Floats:
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except (TypeError, ValueError):
        return np.fromiter((_number(value, column, name) for value in values), np.float64, len(values))


def _whole(values: Sequence[Any], column: str, name: str) -> Ints:
    """Convert to whole numbers; -1 for empty values."""
    try:
        return np.fromiter(map(int, values), np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        found = (_number(value, column, name) for value in values)
        return np.fromiter((int(one) if isfinite(one) else -1 for one in found), np.int64, len(values))


def _number(value: Any, column: str, name: str) -> float:
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "nan", "none", "null", "na", "<na>")):
        return nan
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OperationsUnreadable(f"{name}, column {column}: {str(value)[:40]!r} is no number") from None


def _first_rank(dp_rank: Ints, stage: Ints, rank: Ints) -> Ints:
    """Return, for each row, the lowest rank of its worker."""
    worker = dp_rank * (int(stage.max()) + 2) + stage
    _, at = np.unique(worker, return_inverse=True)
    lowest = np.full(int(at.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, at, rank)
    return lowest[at]


def _ranks_apart(rank: Ints) -> int:
    """Return the distance between the first ranks of neighbouring workers, the ranks per worker. 0: unknown."""
    ranks = np.unique(rank)
    return int(np.diff(ranks).min()) if len(ranks) > 1 and ranks[0] >= 0 else 0


def _why_not(meta: TraceMeta, dp_size: int, pp_size: int, apart: int) -> str:
    """Return how the meta file contradicts the rows; "" if it does not."""
    for name, declared, seen in (("dp_size", meta.dp_size, dp_size), ("pp_size", meta.pp_size, pp_size)):
        if 0 < declared < seen:
            return f"{name} {declared}, and rows of {seen}"
    if apart and meta.tp_size * meta.dsp_size > apart:
        return f"tp_size {meta.tp_size}, and workers are {apart} ranks apart"
    return ""
