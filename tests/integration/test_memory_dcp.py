"""torch.distributed.checkpoint into a real vault, by real ranks that are killed and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from vault_process import Ranks, vault

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("memory_dcp_rank.py")


def test_what_dcp_saves_into_memory_outlives_its_ranks_bit_for_bit(tmp_path: Path) -> None:
    with vault(tmp_path):
        with Ranks(SCRIPT, ["1000", "save"], tmp_path, size=2) as ranks:
            ranks.until("kept 5")
            trained = ranks.kill()
        with Ranks(SCRIPT, ["8", "async_save"], tmp_path, size=2, generation=2) as ranks:
            resumed = ranks.finished()
        with Ranks(SCRIPT, ["8", "save"], tmp_path, size=2, generation=3) as ranks:
            ended = ranks.finished()
    for before, after in ((trained, resumed), (resumed, ended)):
        restored = [said[0].split()[1:] for said in after]
        assert len({digest for _, digest in restored}) == 2
        assert all(" ".join(mine) in said for mine, said in zip(restored, before, strict=True))
    # In step with each other by their collectives, no rank can be two steps behind.
    assert int(resumed[0][0].split()[1]) >= 4
    assert {said[0].split()[1] for said in ended} == {"8"}
