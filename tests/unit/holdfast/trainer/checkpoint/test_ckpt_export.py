"""What of a checkpoint goes out under which name, into which file, and how sizes and places are told."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from holdfast.cli.checkpoints.ckpt_locations import root_of
from holdfast.cli.checkpoints.ckpt_sizes import age_text, size_text, typed_bytes
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint
from holdfast.trainer.checkpoint.exchange.contents import CheckpointContents, Key, Value
from holdfast.trainer.checkpoint.exchange.export import Outgoing, appearing, select
from holdfast.trainer.checkpoint.exchange.safetensors_files import default_path, distribute, fits, header
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest, CheckpointPart, PartLayout, ValueEntry
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder


def value(key: str, *shape: int, dtype: str = "float32") -> Value:
    entry = ValueEntry(key, default_path(key), dtype, shape, (0,) * len(shape), shape, 0, 10, 0)
    return Value(key, entry.path, dtype, shape, (("p", entry),))


KEYS = [
    "model.w",
    "step",
    "shard/pp=0,tp=1/stage.w",
    "shard/pp=1,tp=1/stage.w",
    "rank/0/rng.torch",
    "rank/1/rng.torch",
]
VALUES = {key: value(key, 2) for key in KEYS}


def test_a_key_tells_whose_it_is() -> None:
    assert [Key.of(key) for key in KEYS[:3]] == [
        ("", "model", "w"),
        ("", "step", ""),
        ("shard/pp=0,tp=1", "stage", "w"),
    ]
    assert Key.of("rank/12/rng.torch") == ("rank/12", "rng", "torch")
    assert Key.of("my/own.w") == ("", "my/own", "w")


def test_all_of_it_goes_out_under_its_own_keys() -> None:
    selection = select(VALUES)
    assert [it.name for it in selection.outgoing] == KEYS
    assert selection.apart == ("rank/0", "rank/1", "shard/pp=0,tp=1", "shard/pp=1,tp=1")
    assert select({"model.w": VALUES["model.w"]}).apart == ()


def test_one_shard_goes_out_under_plain_names_with_what_is_global() -> None:
    selection = select(VALUES, shard="pp=1,tp=1")
    assert {it.name: (it.path, it.value.key) for it in selection.outgoing} == {
        "model.w": (("model", "w"), "model.w"),
        "step": (("step",), "step"),
        "stage.w": (("stage", "w"), "shard/pp=1,tp=1/stage.w"),
    }
    assert selection.left_out == ("rank/0", "rank/1", "shard/pp=0,tp=1")


def test_only_some_entries() -> None:
    assert [it.name for it in select(VALUES, only=["model"]).outgoing] == ["model.w"]
    assert [it.name for it in select(VALUES, shard="pp=0,tp=1", only=["stage"]).outgoing] == ["stage.w"]
    assert select(VALUES, only=["rng"]).apart == ("rank/0", "rank/1")


def test_what_cannot_be_chosen_is_refused_with_what_there_is() -> None:
    with pytest.raises(CheckpointError, match="no entry optimizer; it has model, rng, stage, step"):
        select(VALUES, only=["optimizer"])
    with pytest.raises(CheckpointError, match=r"no shard 'pp=2'; it has pp=0,tp=1, pp=1,tp=1"):
        select(VALUES, shard="pp=2")
    both = {key: value(key, 1) for key in ("model.w", "shard/a/model.w")}
    with pytest.raises(CheckpointError, match=r"model\.w is both"):
        select(both, shard="a")


def test_files_are_filled_up_to_their_limit_and_a_large_tensor_has_its_own() -> None:
    sizes = {"a": 40, "b": 60, "c": 1, "d": 500, "e": 99, "f": 1}
    outgoing = [Outgoing(name, (name,), value(name, size, dtype="uint8")) for name, size in sizes.items()]
    files = [[it.name for it in file] for file in distribute(outgoing, 100)]
    assert files == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert distribute([], 100) == []


def test_every_tensor_lies_at_a_multiple_of_its_element_size() -> None:
    kinds = {"flag": ("bool", 3), "wide": ("float64", 3), "half": ("bfloat16", 3), "word": ("int32", 3)}
    outgoing = [Outgoing(name, (name,), value(name, size, dtype=dtype)) for name, (dtype, size) in kinds.items()]
    (file,) = distribute(outgoing, 1000)
    record = header(file, {"format": "pt"})
    assert int.from_bytes(record[:8], "little") == len(record) - 8
    assert len(record) % 8 == 0
    told = json.loads(record[8:])
    assert told.pop("__metadata__") == {"format": "pt"}
    offsets = {name: told[name]["data_offsets"] for name in kinds}
    assert offsets == {"wide": [0, 24], "word": [24, 36], "half": [36, 42], "flag": [42, 45]}


def test_what_safetensors_cannot_hold_does_not_fit() -> None:
    assert not fits(Outgoing("o", ("o",), value("o", dtype="object")))
    assert not fits(Outgoing("c", ("c",), value("c", 2, dtype="complex128")))
    assert fits(Outgoing("b", ("b",), value("b", 2, dtype="bfloat16")))


def test_a_tensor_with_a_hole_is_refused(tmp_path: Path) -> None:
    storage, layout = DirectoryStorage(tmp_path), PartLayout()
    padding = layout.add("w", ("w",), bytes(8), dtype="float32", shape=(3,), chunk_offset=(0,), chunk_shape=(2,))
    size = storage.write(1, "p", [bytes(8), padding, layout.index()])
    part = CheckpointPart(name="p", size=size, index_offset=64, index_crc32=layout.index_crc32, holds=("",))
    location = storage.publish(
        CheckpointManifest(step=1, generation=0, world_size=1, mesh={}, created_at=0.0, parts=(part,))
    )
    with pytest.raises(DamagedCheckpoint, match="w: its pieces have 2 elements, the tensor 3"):
        CheckpointContents(DirectoryFolder(Path(location)))


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"

    def broken_off() -> None:
        with appearing(target) as draft:
            (draft / "file").write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        broken_off()
    assert list(target.parent.iterdir()) == []
    target.mkdir()
    with appearing(target) as draft:
        (draft / "file").write_text("all")
        assert list(target.iterdir()) == []
    assert [path.name for path in target.iterdir()] == ["file"]
    with pytest.raises(CheckpointError, match="exists"), appearing(target):
        pass


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/jobs/a/checkpoints/step-00000010", "/jobs/a/checkpoints"),
        ("s3://b/a/generation-8.a.17/step-00000010.1", "s3://b/a"),
        ("s3://b/step-by-step/generation-8.a.17/vault-step-00000010.1", "s3://b/step-by-step"),
        ("checkpoints/step-00000010", "checkpoints"),
        ("/elsewhere", "/elsewhere"),
    ],
)
def test_a_step_tells_where_its_checkpoints_are(path: str, root: str) -> None:
    assert root_of(path) == root


def test_sizes_and_ages_in_words() -> None:
    assert [size_text(size) for size in (None, 0, 999, 1000, 25_900, 999_499, 999_600, 1_530_000_000, 10**18)] == [
        *("", "0 B", "999 B", "1 kB", "25.9 kB", "999 kB", "1 MB", "1.53 GB", "1e+03 PB"),
    ]
    assert [age_text(seconds) for seconds in (None, -1, 90, 119, 120, 7199, 7200, 86400 * 2)] == [
        *("", "0 s", "90 s", "119 s", "2 min", "119 min", "2 h", "2 d"),
    ]


def test_sizes_as_people_type_them() -> None:
    context, option = click.Context(click.Command("x")), click.Option(["--size"])
    typed = ("5GB", "500 mb", "1.5k", "300", "2TB")
    assert [typed_bytes(context, option, text) for text in typed] == [5 * 10**9, 500 * 10**6, 1500, 300, 2 * 10**12]
    for text in ("0", "", "-1", "5XB", "GB"):
        with pytest.raises(click.BadParameter, match="is not a size"):
            typed_bytes(context, option, text)
