"""torch.distributed.checkpoint into a real vault, by real ranks that are killed and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from vault_process import Ranks, vault

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("memory_dcp_rank.py")


def test_what_dcp_saves_into_memory_outlives_its_ranks_bit_for_bit(tmp_path: Path) -> None:
    with vault(tmp_path):
        with Ranks(SCRIPT, ["train"], tmp_path, size=2) as ranks:
            ranks.until("kept")
            trained = ranks.kill()
        with Ranks(SCRIPT, ["resume"], tmp_path, size=2, generation=2) as ranks:
            resumed = ranks.finished()
    restored = [said[0].split()[1:] for said in resumed]
    assert [step for step, _ in restored] == ["5", "5"]
    assert len({digest for _, digest in restored}) == 2
    assert all(" ".join(mine) in said for mine, said in zip(restored, trained, strict=True))
