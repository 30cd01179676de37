"""Standard input with data that no rank would read."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.cli.unread_input import is_input_waiting


def test_input_waits_in_a_file_or_a_pipe_with_data_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("12\n")
    with (tmp_path / "data").open() as file:
        assert is_input_waiting(file)
        file.read()
        assert not is_input_waiting(file)
    assert not is_input_waiting(file), "it is closed"
    assert not is_input_waiting(None)
    with Path(os.devnull).open() as nothing:
        assert not is_input_waiting(nothing)
    reader, writer = os.pipe()
    with os.fdopen(reader) as pipe:
        assert not is_input_waiting(pipe)
        os.write(writer, b"yes\n")
        assert is_input_waiting(pipe)
    os.close(writer)
