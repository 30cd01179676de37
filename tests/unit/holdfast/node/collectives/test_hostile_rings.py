"""What a rank may put in place of its ring of collectives does not hold up its node's agent, or lead it elsewhere."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from holdfast.node.collectives.hold import Hold
from holdfast.node.collectives.marks import ask_for_marks
from holdfast.node.collectives.ring_layout import COUNTERS_OFFSET, MARKS_OFFSET, RING_OFFSET, STATE_OFFSET, WORDS
from holdfast.node.collectives.ring_reader import RingError, RingReader
from holdfast.trainer.hooks.ring_writer import RingWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RingWriter(tmp_path / "true", rank=0, generation=1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("true")
    (tmp_path / "directory").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["pipe", "link", "directory"])
def test_a_pipe_a_link_and_a_directory_are_no_rings(folder: Path, name: str) -> None:
    before = (folder / "true").read_bytes()
    for use in (RingReader, Hold, ask_for_marks):
        with pytest.raises((RingError, OSError), match=name):
            use(folder / name)
    assert (folder / "true").read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that a rank could not write to")
def test_another_users_ring_is_not_written(folder: Path) -> None:
    (folder / "own").mkdir()
    os.link(folder / "true", folder / "own" / "ring")
    os.chown(folder / "own", 54_321, 54_321)
    RingReader(folder / "own" / "ring").close()
    with pytest.raises(OSError, match="another user"):
        Hold(folder / "own" / "ring")


@pytest.mark.parametrize("seed", range(40))
def test_any_content_is_read_or_refused(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    with (folder / "true").open("r+b") as file:
        for offset, size in ((STATE_OFFSET, 24), (MARKS_OFFSET, 24), (COUNTERS_OFFSET, 8192), (RING_OFFSET, 1 << 16)):
            file.seek(offset)
            file.write(chance.randbytes(size))
        file.seek(STATE_OFFSET)
        file.write(WORDS.pack(chance.choice([-5, 3, 1 << 62]), chance.choice([-1, 0, 64, 1 << 40]), -1))
        file.seek(16_384)
        file.write(b"\x10\0\0\0" + chance.randbytes(60))
    reader = RingReader(folder / "true")
    for read in (reader.trace, reader.new_records, reader.on_device, reader.marks, reader.groups):
        try:
            read()
        except RingError:
            continue
    reader.close()
