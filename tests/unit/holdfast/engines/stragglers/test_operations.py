"""Timings of operations, as they come: text, packed or not, with what they leave out, and damaged."""

from __future__ import annotations

import gzip
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.engines.stragglers.traces.operations import (
    OperationsUnreadable,
    looks_like_meta,
    looks_like_operations,
    read_operations,
)
from tests.scenes.operation_traces import HEADER, Job

ROWS = Job(dp=2, pp=2, microbatches=2, steps=2).trace().decode().splitlines()[1:]


def text(rows: list[str] = ROWS, header: str = HEADER) -> bytes:
    return "\n".join([header, *rows]).encode() + b"\n"


def changed(row: str, column: str, value: str) -> str:
    cells = row.split(",")
    cells[HEADER.split(",").index(column)] = value
    return ",".join(cells)


def test_a_trace_is_read_into_columns() -> None:
    found = read_operations(text(), "trace.csv")
    assert len(found.kind) == len(found.end_s) == len(ROWS)
    assert (found.dp_size, found.pp_size, found.ranks_per_worker, found.warnings) == (2, 2, 2, ())
    forward = found.of_kind("forward-compute")
    assert sorted(found.microbatch[forward].tolist()) == [0] * 8 + [1] * 8
    assert found.duration_s[forward].mean() == pytest.approx(0.2, rel=0.02)
    assert not found.of_kind("no-such-kind").any()


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(text()),
        gzip.compress(text()[:2000]) + gzip.compress(text()[2000:]),
        b"\xef\xbb\xbf" + text().replace(b"\n", b"\r\n"),
        b"\n".join(b",".join(b'"%s"' % cell for cell in line.split(b",")) for line in text().splitlines()),
        text([changed(row, "dp_rank", row.split(",")[0] + ".0") for row in ROWS]),
        text([changed(row, "gmc", "") for row in ROWS]),
        text([changed(row, "optype", row.split(",")[4].replace("-", "_").upper()) for row in ROWS]),
        b"\n\r\n" + text(),
        text().replace(b",", b"\t"),
        text().replace(b",", b";"),
        text(ROWS[::-1]),
        text([",".join(reversed(row.split(","))) for row in ROWS], ",".join(reversed(HEADER.split(",")))),
    ],
    ids=[
        *("gzip", "two gzips", "CRLF", "quoted", "floats", "empty", "spelling", "blank lines", "tabs", "semicolons"),
        *("order of rows", "order of columns"),
    ],
)
def test_the_same_trace_in_another_form_is_the_same(data: bytes) -> None:
    found, wanted = read_operations(data, "trace"), read_operations(text(), "trace")
    assert found.kinds == wanted.kinds
    for column in ("kind", "dp_rank", "stage", "rank", "step", "start_s", "duration_s", "sequence", "microbatch"):
        assert getattr(found, column).tolist() == getattr(wanted, column).tolist(), column


def test_what_is_left_out_follows_from_the_rest() -> None:
    keep = [HEADER.split(",").index(one) for one in ("dp_rank", "stage", "step", "optype", "start_ts", "duration")]
    rows = [",".join(row.split(",")[at] for at in keep) for row in ROWS]
    found = read_operations(text(rows, "dp_rank,stage,step,optype,start_ts,duration"), "trace")
    wanted = read_operations(text(), "trace")
    assert found.sequence.tolist() == wanted.sequence.tolist()
    assert found.microbatch.tolist() == wanted.microbatch.tolist()
    assert set(found.rank.tolist()) == {-1}


def test_sizes_come_from_the_meta_file_where_there_is_one() -> None:
    for meta in (
        b"trial_name: x\ndp_size: 3  # of all\npp_size: 2\ntp_size: 1\n",
        b'{"dp_size":3,"pp_size":2,"tp_size":"1"}',
    ):
        assert looks_like_meta(meta)
        found = read_operations(text(), "trace", meta)
        assert (found.dp_size, found.ranks_per_worker) == (3, 1)
        assert found.warnings == ("2 of 6 workers (data-parallel ranks x stages) have no rows",)


def test_rows_of_tensor_parallel_ranks_count_once() -> None:
    twice = ROWS + [changed(row, "rank", str(int(row.split(",")[2]) + 1)) for row in ROWS]
    found = read_operations(text(twice), "trace")
    assert len(found.kind) == len(ROWS)
    assert found.warnings == ("several ranks of a worker were recorded: the lowest stands for it",)


def test_a_row_that_is_wrong_is_left_out_and_said() -> None:
    many = Job(dp=2, pp=2, microbatches=4, steps=2).trace().decode().splitlines()[1:]
    found = read_operations(text([changed(many[0], "duration", "-0.1"), *many[1:]]), "trace")
    assert len(found.kind) == len(many) - 1
    assert "row 1" in found.warnings[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not name the columns"),
        (text([]), "no rows"),
        (
            text([row.rsplit(",", 7)[0] for row in ROWS], "dp_rank,stage,rank,step"),
            "no column optype, start_ts, duration",
        ),
        (text()[:-20], "cut short"),
        (gzip.compress(text())[:-200], "cut short"),
        (gzip.compress(text())[:200] + b"\xff" * 2000, "damaged gzip"),
        (text([ROWS[0] + ",1", *ROWS[1:]]), "row 1: 12 fields, where the first line names 11"),
        (text([changed(row, "duration", "-1") for row in ROWS]), "record it again"),
        (text([changed(row, "duration", "soon") for row in ROWS]), "'soon' is no number"),
        (text([changed(row, "duration", "0") for row in ROWS]), "last 0 s"),
        (text([changed(row, "optype", "idle") for row in ROWS]), "neither forward-compute nor backward-compute"),
        (text([changed(ROWS[0], "dp_rank", "123456789"), *ROWS[1:]]), "not global ranks"),
        (bytes(range(256)) * 20, "not comma-separated text"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, says: str) -> None:
    with pytest.raises(OperationsUnreadable, match=r"trace\.csv") as refused:
        read_operations(data, "trace.csv")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (b"dp_size: 1\npp_size: 2\ntp_size: 2\n", "dp_size 1, and rows of 2"),
        (b"dp_size: 2\npp_size: 1\ntp_size: 2\n", "pp_size 1, and rows of 2"),
        (b"dp_size: 2\npp_size: 2\ntp_size: 8\n", "tp_size 8, and workers are 2 ranks apart"),
    ],
)
def test_a_meta_file_of_another_job_is_not_used(meta: bytes, says: str) -> None:
    found = read_operations(text(), "trace", meta)
    assert (found.dp_size, found.pp_size, found.ranks_per_worker) == (2, 2, 2)
    assert found.warnings == (f"the meta file is of another job ({says}): not used",)


@pytest.mark.parametrize("size", ["-2", "99999999999999999999"])
def test_a_size_that_none_can_be_is_refused(size: str) -> None:
    with pytest.raises(OperationsUnreadable, match="tp_size"):
        read_operations(text(), "trace", f'{{"dp_size": 2, "pp_size": 2, "tp_size": {size}}}'.encode())


def test_a_meta_file_without_sizes_says_so() -> None:
    with pytest.raises(OperationsUnreadable, match="dp_size: 4"):
        read_operations(text(), "trace", b"hello")


def test_parquet_is_read_if_pyarrow_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(OperationsUnreadable, match="pip install pyarrow"):
        read_operations(b"PAR1....PAR1", "trace.parquet")

    class Table(dict[str, Any]):
        column_names = HEADER.split(",")

    columns = zip(*(row.split(",") for row in ROWS), strict=True)
    table = Table(
        (name, SimpleNamespace(to_pylist=lambda cells=cells: list(cells)))
        for name, cells in zip(Table.column_names, columns, strict=True)
    )
    arrow = SimpleNamespace(BufferReader=lambda data: data, ArrowException=RuntimeError)
    parquet = SimpleNamespace(read_table=lambda _: table)
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert len(read_operations(b"PAR1....PAR1", "trace.parquet").kind) == len(ROWS)


def test_timings_are_told_from_other_files_by_their_beginning() -> None:
    assert looks_like_operations(text()[:1024])
    assert looks_like_operations(gzip.compress(text())[:512])
    assert looks_like_operations(b"PAR1")
    for other in (b'{"entries": []}', b"Thread 0x7f (active)\n", b"\x80\x04\x95", b"", gzip.compress(b"a log")):
        assert not looks_like_operations(other)
    assert not looks_like_meta(b"Traceback (most recent call last)")
