"""DTensors in a vault: each rank keeps its own part of them, and goes on with it after all ranks were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from vault_process import Ranks, vault

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("memory_dtensors_rank.py")


def test_killed_ranks_go_on_with_their_parts_and_a_job_cut_otherwise_with_the_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with vault(tmp_path):
        with Ranks(SCRIPT, ["1000", "tp"], tmp_path, size=2) as ranks:
            ranks.until("kept 5")
            trained = ranks.kill()
        with Ranks(SCRIPT, ["8", "tp"], tmp_path, size=2, generation=2) as ranks:
            restored = [said[0].split()[1:3] for said in ranks.finished()]
        with Ranks(SCRIPT, ["3", "fsdp"], tmp_path, size=2, generation=3) as ranks:
            resharded = [said[0].split() for said in ranks.finished()]
    (saved,) = (line.split()[1] for line in trained[0] if line.startswith("saved"))
    # In step with each other by their collectives, no rank can be two steps behind.
    (step,) = {step for step, _ in restored}
    assert int(step) >= 4
    # Parameters, moments and generators, bit for bit; every rank's are others.
    assert len({digest for _, digest in restored}) == 2
    assert all(" ".join(mine) in said for mine, said in zip(restored, trained, strict=True))

    assert [(words[1], words[3]) for words in resharded] == [("2", saved)] * 2
    assert "step 8 in memory cannot be used: training.model.widen.weight was kept as (1300, 1025) as" in (
        capfd.readouterr().err
    )
