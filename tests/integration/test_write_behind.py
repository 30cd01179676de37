"""Checkpoints answered from memory: a real vault, real ranks that are killed, and what is on the disk then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from vault_process import Ranks, vault
from write_behind_state import state

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("write_behind_rank.py")


def _rank(place: Path, what: str, generation: int = 1) -> Ranks:
    return Ranks(SCRIPT, [str(place), what], place, size=1, generation=generation)


def _as_torch_writes_it(place: Path, seed: int) -> bytes:
    """What the same `torch.save` writes without Holdfast: the name of the file is in it."""
    other = place / "expected"
    other.mkdir(exist_ok=True)
    torch.save(state(seed), other / "ckpt.pt")
    return (other / "ckpt.pt").read_bytes()


def _killed(place: Path) -> Path:
    """A save that was answered, and a rank that was killed before its file appeared; that file."""
    with _rank(place, "killed") as rank:
        rank.until("answered")
        rank.kill()
    ckpt = place / "out" / "ckpt.pt"
    assert ckpt.read_bytes() == _as_torch_writes_it(place, 1)
    return ckpt


def test_a_save_that_was_answered_is_there_after_a_kill_byte_for_byte(tmp_path: Path) -> None:
    with vault(tmp_path):
        ckpt = _killed(tmp_path)
        with _rank(tmp_path, "look", generation=2) as rank:
            (said,) = rank.finished()
        assert said[-2:] == ["there True", "step 2"] and "is back from memory" in said[0]
        assert ckpt.read_bytes() == _as_torch_writes_it(tmp_path, 2)
        # And only once.
        ckpt.unlink()
        with _rank(tmp_path, "look", generation=3) as rank:
            assert rank.finished() == [["there False"]]


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_what_a_person_did_to_the_file_since_wins(tmp_path: Path, change: str) -> None:
    with vault(tmp_path):
        ckpt = _killed(tmp_path)
        ckpt.unlink()
        if change == "replaced":
            torch.save(state(9), ckpt)
        with _rank(tmp_path, "look", generation=2) as rank:
            (said,) = rank.finished()
    assert "is not taken from memory" in said[0]
    assert said[1:] == (["there False"] if change == "removed" else ["there True", "step 9"])


def test_a_save_that_is_lost_with_its_memory_is_reported_and_the_one_before_it_is_there(tmp_path: Path) -> None:
    with vault(tmp_path):
        ckpt = _killed(tmp_path)
    with vault(tmp_path), _rank(tmp_path, "look", generation=2) as rank:
        (said,) = rank.finished()
    assert f"{ckpt} as it was saved at" in said[0] and "is lost" in said[0] and "The one before it is there" in said[0]
    assert said[1:] == ["there True", "step 1"]


def test_whatever_the_script_does_with_files_finds_each_save_complete(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "operations") as rank:
        assert rank.finished() == [["tried"]]


def test_a_disk_that_refuses_a_save_after_its_answer_is_heard(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "full") as rank:
        assert rank.finished() == [["exists False", "remove True True", "save True", "step 5"]]


def test_a_process_whose_last_save_the_disk_refuses_does_not_end_well(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "full, at the end") as rank:
        rank.until("ends")
        with pytest.raises(AssertionError, match="save True"):
            rank.finished()


def test_without_memory_a_save_goes_straight_to_the_disk_and_says_so(tmp_path: Path) -> None:
    with vault(tmp_path, "--memory-bytes", "1000000"), _rank(tmp_path, "full memory") as rank:
        (said,) = rank.finished()
    assert said[-1] == "there at once"
    assert any(line.endswith("ckpt.pt goes straight to the disk: it is not kept in memory") for line in said)
    assert (tmp_path / "out" / "ckpt.pt").read_bytes() == _as_torch_writes_it(tmp_path, 1)


def test_a_script_that_keeps_its_steps_itself_has_the_memory_for_them(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "checkpointer") as rank:
        (said,) = rank.finished()
    assert said[-1] == "True 1"


def test_what_a_rank_starts_is_not_the_rank(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "children") as rank:
        assert rank.finished() == [["does not keep 1"]]


def test_a_writer_removes_only_its_own_remains(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "parts") as rank:
        assert rank.finished() == [["['other.pt']"]]


def test_the_flag_acts_in_a_rank_that_imports_torch_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "torch.save({'weights': torch.ones(300_000)}, 'ckpt.pt')\n"
        "from holdfast.trainer.write_behind import switch_on\n"
        "print('step', switch_on._started[0]._step, torch.load('ckpt.pt')['weights'].sum().item())\n"
    )
    variables = {
        "HOLDFAST_VAULT": str(tmp_path),
        "HOLDFAST_JOB": "job",
        "HOLDFAST_JOB_DIR": str(tmp_path / "job"),
        "HOLDFAST_GENERATION": "1",
        "HOLDFAST_MEMORY_CHECKPOINTS": "1",
    }
    with vault(tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.trainer.rank", script.name],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "step 1 300000.0\n"


def test_links_rights_names_and_errors_are_as_without_it(tmp_path: Path) -> None:
    with vault(tmp_path), _rank(tmp_path, "odd") as rank:
        (said,) = rank.finished()
    assert any(line.endswith("one.pt has more than one name") for line in said)
    answers = [line for line in said if "straight to the disk" not in line]
    assert answers[:4] == ["link kept True", "both names 7", "rights 0o640", "error RuntimeError"]
    # What a lambda raises has another name in later Pythons.
    assert answers[4].startswith("error ") and answers[4].endswith("Error 7") and answers[5:] == ["left over []"]
    for name in ("relative.pt", "out/größe.pt", "out/second"):
        expected = tmp_path / "expected" / Path(name).name
        expected.parent.mkdir(exist_ok=True)
        torch.save(state(7), os.fspath(expected))
        assert (tmp_path / name).read_bytes() == expected.read_bytes()
