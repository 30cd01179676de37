"""A manifest, an index or a shard's index with hostile or damaged numbers is refused before anything is allocated."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from holdfast.trainer.checkpoint import Checkpointer, DamagedCheckpoint
from holdfast.trainer.checkpoint.exchange.verify import verify
from holdfast.trainer.checkpoint.layout.manifest import (
    MANIFEST,
    OBJECT,
    UNSUMMED_FORMAT,
    CheckpointManifest,
    CheckpointPart,
    ValueEntry,
)
from holdfast.trainer.checkpoint.layout.manifest_checks import (
    ITEM_BYTES,
    PACKED_ITEM_BYTES,
    check_manifest,
    decode_index,
)
from holdfast.trainer.checkpoint.layout.part_format import set_element
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder, read_manifest
from holdfast.trainer.vault_client.shard_layout import ShardEntry, put_together

HUGE = 1 << 62


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryFolder:
    monkeypatch.setenv("HOLDFAST_JOB", "")
    Checkpointer(tmp_path, mesh={"dp": 1}).save(7, {"x": torch.ones(3)})
    return DirectoryFolder(tmp_path / "step-00000007")


def is_whole(folder: DirectoryFolder) -> bool:
    return not verify(folder, threads=1, on_bytes=lambda _: None).damage


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path, saved: DirectoryFolder) -> None:
    path = tmp_path / "step-00000007" / MANIFEST
    record = path.read_bytes()
    assert is_whole(saved)
    for place in range(8 * len(record)):
        spoiled = bytearray(record)
        spoiled[place // 8] ^= 1 << place % 8
        path.write_bytes(spoiled)
        with pytest.raises(DamagedCheckpoint):
            read_manifest(saved)
    assert not is_whole(saved)


def test_a_manifest_of_an_older_version_is_read_and_reported(tmp_path: Path, saved: DirectoryFolder) -> None:
    manifest = msgspec.structs.replace(read_manifest(saved), format=UNSUMMED_FORMAT)
    (tmp_path / "step-00000007" / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    state = {"x": torch.zeros(3)}
    assert Checkpointer(tmp_path, mesh={"dp": 1}).restore(state) == 7
    assert torch.equal(state["x"], torch.ones(3))
    verdict = verify(saved, threads=1, on_bytes=lambda _: None)
    assert verdict.has_unsummed_manifest and not verdict.damage


def part(**fields: Any) -> CheckpointPart:
    fields = {"name": "rank-00000.part", "size": 200, "index_offset": 128, "index_crc32": 0, "holds": ("",)} | fields
    return CheckpointPart(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"step": -1},
        {"step": HUGE},
        {"generation": -1},
        {"world_size": 0},
        {"world_size": HUGE},
        {"parts": ()},
        {"parts": (part(), part())},
        {"parts": (part(name="../other/rank-00000.part"),)},
        {"parts": (part(name=MANIFEST),)},
        {"parts": (part(name=""),)},
        {"parts": (part(index_offset=-1),)},
        {"parts": (part(index_offset=201),)},
        {"parts": (part(size=-1, index_offset=-1),)},
        {"parts": (part(size=HUGE),)},
    ],
    ids=str,
)
def test_a_manifest_with_impossible_numbers_is_damaged(fields: dict[str, Any]) -> None:
    good = CheckpointManifest(step=7, generation=1, world_size=1, mesh={}, created_at=0.0, parts=(part(),))
    check_manifest(good, "here")
    with pytest.raises(DamagedCheckpoint, match=r"here: manifest\.json cannot be right"):
        check_manifest(msgspec.structs.replace(good, **fields), "here")


def entry(**fields: Any) -> ValueEntry:
    good = ValueEntry("x", ("x",), "float32", (4, 8), (0, 0), (2, 8), 64, 64, 0)
    return msgspec.structs.replace(good, **fields)


def indexed(*entries: ValueEntry) -> tuple[CheckpointPart, bytes]:
    index = msgspec.json.encode(entries)
    return part(index_crc32=zlib.crc32(index)), index


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": -64},
        {"offset": 65},
        {"offset": HUGE},
        {"nbytes": -64},
        {"nbytes": HUGE},
        {"nbytes": 60},
        {"dtype": "load"},
        {"dtype": "float64"},
        {"shape": (4,)},
        {"shape": (-4, 8)},
        {"shape": (1, 8)},
        {"shape": (HUGE, HUGE), "chunk_shape": (HUGE, HUGE)},
        {"chunk_offset": (3, 0)},
        {"chunk_offset": (-1, 0)},
        {"chunk_shape": (-2, -8)},
        {"path": ()},
        {"path": ("x", HUGE)},
        {"path": ("x", -1)},
    ],
    ids=str,
)
def test_an_index_with_impossible_numbers_is_damaged(fields: dict[str, Any]) -> None:
    assert decode_index(*indexed(entry())) == (entry(),)
    with pytest.raises(DamagedCheckpoint, match="the index cannot be right: 'x'"):
        decode_index(*indexed(entry(**fields)))


def test_an_index_whose_entries_overlap_is_damaged() -> None:
    first = ValueEntry("a", ("a",), OBJECT, (), (), (), 0, 65, 0)
    with pytest.raises(DamagedCheckpoint, match="begin at 64, inside of those of another entry"):
        decode_index(*indexed(entry(), first))
    empty = ValueEntry("a", ("a",), OBJECT, (), (), (), 64, 0, 0)
    assert len(decode_index(*indexed(entry(), empty, msgspec.structs.replace(first, nbytes=64)))) == 3


def test_an_index_that_is_none_is_damaged() -> None:
    for index in (b"[[1,2]]", b"\xff", b"{}"):
        with pytest.raises(DamagedCheckpoint, match="the index cannot be read"):
            decode_index(part(index_crc32=zlib.crc32(index)), index)


@pytest.mark.parametrize(
    "hostile",
    [
        ShardEntry(("x",), "load", (1,), 0),
        ShardEntry(("x",), "float32", (HUGE, HUGE), 0),
        ShardEntry(("x",), "float32", (-1,), 0),
        ShardEntry(("x",), "float32", (-1, -4), 0),
        ShardEntry(("x",), "float32", (17,), 0),
        ShardEntry(("x",), "float32", (1,), -4),
        ShardEntry(("x",), "float32", (1,), 64),
        ShardEntry(("x", HUGE), "float32", (1,), 0),
    ],
    ids=str,
)
def test_a_shard_whose_index_has_impossible_numbers_is_not_put_together(hostile: ShardEntry) -> None:
    memory, objects = np.zeros(64, np.uint8), msgspec.msgpack.encode(())
    good = ShardEntry(("y",), "float32", (4, 4), 0)
    assert put_together(msgspec.msgpack.encode(((good,),)), objects, memory)["y"].shape == (4, 4)
    with pytest.raises(ValueError, match=r"x"):
        put_together(msgspec.msgpack.encode(((good, hostile),)), objects, memory)


def test_no_list_is_made_for_an_absurd_place() -> None:
    with pytest.raises(ValueError, match="a place in a list"):
        set_element({}, ("x", 10**9), 1)


def test_all_dtypes_of_torch_are_known() -> None:
    found = {str(it).removeprefix("torch."): it for it in vars(torch).values() if isinstance(it, torch.dtype)}
    known = ITEM_BYTES | PACKED_ITEM_BYTES
    assert {name: dtype.itemsize for name, dtype in found.items()} == {name: known[name] for name in found}
