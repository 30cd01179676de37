"""Whatever byte is not what was written, verifying names its file and its range; nothing else is called damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Lock

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.trainer.checkpoint.errors import CheckpointMismatch
from holdfast.trainer.checkpoint.exchange import verify as checkpoint_verify
from holdfast.trainer.checkpoint.exchange.verify import Damage, verify
from holdfast.trainer.checkpoint.layout.manifest import (
    ALIGNMENT,
    FORMAT,
    CheckpointManifest,
    CheckpointPart,
    PartLayout,
    encode_manifest,
)
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder

SIZES = (100, 0, ALIGNMENT, 1, 5000, 64, 0)
PARTS = ("rank-00000.part", "rank-00001.part")


def write(root: Path, step: int = 1) -> tuple[DirectoryFolder, CheckpointManifest]:
    storage, parts = DirectoryStorage(root), []
    for name in PARTS:
        layout, data = PartLayout(), b""
        for number, size in enumerate(SIZES):
            value = bytes((number + byte) % 256 for byte in range(size))
            path, piece = ("model", str(number)), {"shape": (size,), "chunk_offset": (0,), "chunk_shape": (size,)}
            data += value + layout.add(".".join(path), path, value, dtype="uint8", **piece)
        index = layout.index()
        size = storage.write(step, name, [data, index])
        at, crc32 = layout.index_offset, layout.index_crc32
        parts.append(CheckpointPart(name=name, size=size, index_offset=at, index_crc32=crc32, holds=("",)))
    manifest = CheckpointManifest(step=step, generation=0, world_size=2, mesh={}, created_at=0.0, parts=tuple(parts))
    return DirectoryFolder(Path(storage.publish(manifest))), manifest


def flip(folder: DirectoryFolder, name: str, *places: int) -> None:
    path = Path(folder.name, name)
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)


def damage(folder: DirectoryFolder) -> list[Damage]:
    return list(verify(folder, threads=2, on_bytes=lambda nbytes: None).damage)


@pytest.fixture(params=[1, 7, 64, 1000, 1 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(checkpoint_verify, "BLOCK_BYTES", request.param)
    return request.param


def test_what_is_whole_is_read_to_the_last_byte(tmp_path: Path, block_bytes: int) -> None:
    folder, manifest = write(tmp_path)
    lock, told = Lock(), [0]

    def on_bytes(nbytes: int) -> None:
        with lock:
            told[0] += nbytes

    verdict = verify(folder, threads=2, on_bytes=on_bytes)
    assert verdict.damage == ()
    assert verdict.checked_bytes == told[0] == manifest.nbytes


def test_every_flipped_byte_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_verify, "BLOCK_BYTES", 1000)
    folder, manifest = write(tmp_path)
    part = manifest.parts[1]
    starts = [sum(-(-size // ALIGNMENT) * ALIGNMENT for size in SIZES[:number]) for number in range(len(SIZES))]
    ranges = [(start, start + size) for start, size in zip(starts, SIZES, strict=True) if size]
    for place in [*range(0, part.index_offset, 13), *range(part.index_offset, part.size, 50), part.size - 1]:
        flip(folder, part.name, place)
        found = damage(folder)
        flip(folder, part.name, place)
        if place >= part.index_offset:
            (only,) = found
            assert (only.file, only.begin, only.end) == (part.name, part.index_offset, part.size)
            assert "index fails its checksum" in only.what
            continue
        expected = [(part.name, begin, end) for begin, end in ranges if begin <= place < end]
        assert [(it.file, it.begin, it.end) for it in found] == expected, place


def test_neighbours_are_one_range_and_strangers_are_not(tmp_path: Path) -> None:
    folder, _ = write(tmp_path)
    flip(folder, PARTS[0], 5, 128)
    flip(folder, PARTS[1], 128, 192)
    # Between the first and the third value lies an empty one, which nothing can damage.
    assert [(it.file, it.begin, it.end, it.what) for it in damage(folder)] == [
        (PARTS[0], 0, 100, "model.0"),
        (PARTS[0], 128, 192, "model.2"),
        (PARTS[1], 128, 193, "model.2 to model.3 (2 entries)"),
    ]


def test_what_is_missing_or_cut_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    folder, manifest = write(tmp_path)
    whole = manifest.parts[0].size
    Path(folder.name, PARTS[0]).write_bytes(b"short")
    flip(folder, PARTS[1], 0)
    first, second = damage(folder)
    assert (first.file, first.begin, first.end) == (PARTS[0], 5, whole)
    assert (second.file, second.begin, second.end) == (PARTS[1], 0, 100)
    Path(folder.name, PARTS[0]).unlink()
    first, _ = damage(folder)
    assert (first.file, first.begin, first.end, first.what) == (PARTS[0], 0, whole, "No such file or directory")


def test_a_broken_manifest_is_damage_and_another_version_is_not(tmp_path: Path) -> None:
    folder, manifest = write(tmp_path)
    path = Path(folder.name, "manifest.json")
    text = path.read_text()
    path.write_text(text[:20])
    (only,) = damage(folder)
    assert (only.file, only.begin, only.end) == ("manifest.json", 0, 20)
    path.write_bytes(b'{"of another release":' + b"[" * 100_000)
    (only,) = damage(folder)
    assert only.file == "manifest.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, format=FORMAT + 1)))
    with pytest.raises(CheckpointMismatch, match=f"format {FORMAT + 1}"):
        damage(folder)


@pytest.mark.parametrize("asked", ["sizes", "get", "read"])
def test_a_step_that_its_job_drops_meanwhile_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    dropped, _ = write(tmp_path, step=1)
    write(tmp_path, step=2)
    answer = getattr(DirectoryFolder, asked)

    def after_the_drop(folder: DirectoryFolder, *arguments: object) -> object:
        shutil.rmtree(dropped.name, ignore_errors=True)
        return answer(folder, *arguments)

    monkeypatch.setattr(DirectoryFolder, asked, after_the_drop)
    result = CliRunner().invoke(main, ["ckpt", "verify", "--path", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (0, "step 1 was deleted by its job in the meantime\n"), result.output
    assert "step 2" in result.stdout and "whole" in result.stdout


def test_what_cannot_be_read_and_is_still_there_is_said(tmp_path: Path) -> None:
    folder, _ = write(tmp_path)
    part = Path(folder.name, PARTS[0])
    part.unlink()
    part.mkdir()
    result = CliRunner().invoke(main, ["ckpt", "verify", "--path", str(tmp_path)])
    assert result.exit_code != 0 and "dropped" not in result.output
