"""What a rank may put in place of its exception record does not hold up its zygote, or lead it elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.events import BODY_BYTES_MAX
from holdfast.events.parts.ranks import RankException
from holdfast.trainer.rank import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX
from holdfast_agent.zygote.exception_files import read_exception


def test_a_pipe_a_link_and_a_directory_are_no_records(tmp_path: Path) -> None:
    fields = {field.name: "x" for field in msgspec.structs.fields(RankException) if field.type is str}
    true = tmp_path / "true"
    true.write_bytes(msgspec.json.encode(fields))
    assert read_exception(true) is not None
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(true)
    (tmp_path / "directory").mkdir()
    assert [read_exception(tmp_path / name) for name in ("pipe", "link", "directory", "missing")] == [None] * 4


@pytest.mark.parametrize("record", [b'{"type":"\xff"}', b'{"more":' + b"[" * 100_000, b"[]", b""])
def test_a_record_that_is_no_text_or_nested_without_end_is_none(tmp_path: Path, record: bytes) -> None:
    (tmp_path / "record").write_bytes(record)
    assert read_exception(tmp_path / "record") is None


def test_no_exception_makes_the_end_of_its_rank_too_long_to_be_read(tmp_path: Path) -> None:
    for chars in (MESSAGE_CHARS_MAX + TRACEBACK_CHARS_MAX, BODY_BYTES_MAX // 6):
        long = RankException(type="T", message="", traceback="\x01" * chars)
        (tmp_path / "record").write_bytes(msgspec.json.encode(long))
        read = read_exception(tmp_path / "record")
        assert (read is not None) == (chars <= MESSAGE_CHARS_MAX + TRACEBACK_CHARS_MAX)
