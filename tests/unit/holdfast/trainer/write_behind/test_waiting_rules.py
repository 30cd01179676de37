"""What a script may do at once, and what waits, while a checkpoint is on its way."""

from __future__ import annotations

import pytest

from holdfast.trainer.write_behind.waiting_rules import (
    awaited,
    must_wait_to_change,
    must_wait_to_list,
    must_wait_to_read,
)

ON_WAY = awaited(["/data/run/out/step-20/model.pt"])
WIDE = ("/home/me/project", "/tmp", "/home/me")


def test_only_the_file_itself_is_waited_for_to_be_read_and_only_its_directory_to_be_listed() -> None:
    assert must_wait_to_read("/data/run/out/step-20/model.pt", ON_WAY)
    assert not must_wait_to_read("/data/run/out/step-20/config.json", ON_WAY)
    assert not must_wait_to_read("/data/run/out/step-20", ON_WAY)
    assert must_wait_to_list("/data/run/out/step-20", ON_WAY)
    assert not must_wait_to_list("/data/run/out", ON_WAY)


@pytest.mark.parametrize(
    "path",
    [
        "/data/run/out/step-20/model.pt",
        "/data/run/out/step-20/trainer_state.json",
        # The directory itself, and those above it, are removed or renamed.
        "/data/run/out/step-20",
        "/data/run/out",
        "/data",
        # Pointers to the newest checkpoint, as of DeepSpeed and Megatron.
        "/data/run/out/latest",
        "/data/run/latest_checkpointed_iteration.txt",
        # The checkpoint before it, removed by a rotation file by file.
        "/data/run/out/step-10/model.pt",
        "/data/run/out/step-10",
    ],
)
def test_what_speaks_about_the_file_is_changed_after_it(path: str) -> None:
    assert must_wait_to_change(path, ON_WAY, WIDE)


@pytest.mark.parametrize("path", ["/data/other/run/x", "/data/run/logs/events", "/var/cache/x", "/data/run/output/x"])
def test_what_is_elsewhere_is_changed_at_once(path: str) -> None:
    assert not must_wait_to_change(path, ON_WAY, WIDE)


def test_a_directory_with_everything_in_it_does_not_make_all_its_files_wait() -> None:
    for folder, other in (("/home/me/project/out", "/home/me/project/wandb/log"), ("/tmp/out", "/tmp/cache/kernel")):
        on_way = awaited([f"{folder}/ckpt.pt"])
        assert not must_wait_to_change(other, on_way, WIDE)
        assert must_wait_to_change(f"{folder}/other.pt", on_way, WIDE)
        assert must_wait_to_change(folder, on_way, WIDE)
        assert must_wait_to_change(f"{folder}/../latest".replace("/out/..", ""), on_way, WIDE)


def test_a_directory_is_not_taken_for_another_whose_name_it_begins() -> None:
    assert not must_wait_to_change("/data/run/ou", ON_WAY, WIDE) or ON_WAY.folders == {"/data/run/out/step-20"}
    assert not must_wait_to_change("/data/run/out/step-2/x/y", awaited(["/data/run/out/step-20/deep/m.pt"]), WIDE)
