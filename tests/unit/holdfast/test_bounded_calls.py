import os
import threading
from pathlib import Path

import pytest

from holdfast import bounded_calls
from holdfast.bounded_calls import NoWriter, open_file, read_text, within


def test_a_call_that_does_not_return_is_left_behind() -> None:
    over = threading.Event()
    with pytest.raises(TimeoutError):
        within(over.wait, 0.05)
    over.set()


def test_a_call_gives_its_result_or_its_error() -> None:
    assert within(lambda: 7, 30) == 7
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0, 30)


def test_a_named_pipe_without_a_writer_is_refused_and_one_that_is_written_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with monkeypatch.context() as at_once:
        at_once.setattr(bounded_calls, "WRITER_WITHIN_S", 0.01)
        with pytest.raises(NoWriter, match="no process writes to it"):
            open_file(pipe)
    # The call that was left behind still waits for a writer, and takes none of what another pipe gets.
    os.mkfifo(pipe := tmp_path / "other")
    writer = threading.Thread(target=pipe.write_text, args=("a line\n" * 20_000,))
    writer.start()
    assert read_text(pipe) == "a line\n" * 20_000
    writer.join()


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("é")
    assert read_text(file) == "é"
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")
