"""What dumps lie in: archives, pipes, packed files, texts of other systems; and what nothing can be read from."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import bounded_calls
from holdfast.cli.offline import dump_contents
from holdfast.cli.offline.dump_contents import contents
from holdfast.cli.offline.dump_inputs import Inputs, read_inputs
from tests.unit.holdfast.cli.commands.test_cli_analyze import dumps


def read(*paths: Path) -> Inputs:
    return read_inputs([str(path) for path in paths], None)


def ranks(found: Inputs) -> list[int | None]:
    return sorted((process.rank for process in found.processes), key=str)


def as_tar(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, "dumps")
    return packed.getvalue()


def as_zip(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    return packed.getvalue()


@pytest.mark.parametrize(
    "pack", [as_tar, as_zip, lambda of: gzip.compress(as_tar(of)), lambda of: lzma.compress(as_tar(of))]
)
def test_an_archive_is_read_as_a_folder(tmp_path: Path, pack: Callable[[Path], bytes]) -> None:
    (folder := tmp_path / "dumps").mkdir()
    (archive := tmp_path / "archive").write_bytes(pack(dumps(folder, 3)))
    found = read(archive)
    assert (ranks(found), found.unread) == ([0, 1, 2], [])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_and_several_streams_of_one(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (file := tmp_path / "x").write_bytes(pack(b"a") + pack(b"b"))
    assert list(contents(file, "x")) == [("x", b"ab")]


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("Thread", "\x1b[32mThread\x1b[0m").encode(),
        lambda text: "".join(f"[rank1]: {line}\n" for line in text.splitlines()).encode(),
    ],
)
def test_texts_of_other_systems(tmp_path: Path, written: Callable[[str], bytes]) -> None:
    text = (dumps(tmp_path, 2) / "rank-1.txt").read_text()
    (tmp_path / "rank-1.txt").write_bytes(written(text))
    found = read(tmp_path)
    assert (ranks(found), found.unread) == ([0, 1], [])
    assert found.processes[0].threads[0].frames == found.processes[1].threads[0].frames


def test_each_file_that_cannot_be_read_says_why_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_calls, "WRITER_WITHIN_S", 0.01)
    monkeypatch.setattr(dump_contents, "UNPACKED_BYTES_MAX", 1 << 16)
    (folder := tmp_path / "dumps").mkdir()
    dumps(folder, 2)
    (folder / "link").symlink_to("nowhere")
    (folder / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    (folder / "cut.bz2").write_bytes(bz2.compress(b"x" * 99)[:30])
    (folder / "deep.json").write_text("[" * 50_000)
    (folder / "zstd").write_bytes(b"\x28\xb5\x2f\xfd....")
    (folder / "broken.zip").write_bytes(b"PK\x03\x04....")
    os.mkfifo(pipe := tmp_path / "pipe")
    found = read(folder, pipe, tmp_path / "gone", Path("/dev/zero"))
    assert ranks(found) == [0, 1]
    said = {Path(one.file).name: one.error for one in found.unread}
    words = {
        "link": "a link to what is not there",
        "bomb.gz": "larger than",
        "cut.bz2": "cut short",
        "deep.json": "JSON is broken",
        "zstd": "unpack it with",
        "broken.zip": "zip archive",
        "pipe": "no process writes to it",
        "gone": "is not there",
        "zero": "neither a file nor a folder",
    }
    assert set(said) == set(words)
    assert all(words[name] in error for name, error in said.items()), said
