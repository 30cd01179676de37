"""DTensors and tensors that share memory in a vault: what comes back after all ranks were killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from vault_process import Ranks, vault

from holdfast.node.vault import userfaultfd
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.trainer.vault_client import client as memory

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("memory_dtensors_rank.py")


def test_killed_ranks_go_on_with_their_parts_and_a_job_cut_otherwise_with_the_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with vault(tmp_path):
        with Ranks(SCRIPT, ["train"], tmp_path, size=2) as ranks:
            ranks.until("kept 6")
            trained = ranks.kill()
        with Ranks(SCRIPT, ["resume"], tmp_path, size=2, generation=2) as ranks:
            resumed = ranks.finished()
    restored = [said[0].split()[1:] for said in resumed]
    # In step with each other by their collectives: one has kept step 6, so all have kept step 5. What was kept last is
    # still copied while its rank goes on, and lost if that is killed; the step before is whole by then.
    assert {int(step) >= 4 for step, _ in restored} == {True}
    # Parameters, moments and generators, bit for bit; every rank's are others.
    assert len({digest for _, digest in restored}) == 2
    assert all(" ".join(mine) in said for mine, said in zip(restored, trained, strict=True))

    (saved,) = (line for line in trained[0] if line.startswith("saved"))
    assert [said[1] for said in resumed] == [saved.replace("saved", "resharded")] * 2
    assert re.search(
        r"step \d+ in memory cannot be used: training\.model\.\w+\.weight was kept as .*tp=2", capfd.readouterr().err
    )


@pytest.mark.parametrize("protects", [True, False])
def test_tied_weights_and_overlapping_views_come_back_as_they_were(
    tmp_path: Path, protects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protects:
        monkeypatch.setattr(memory.userfaultfd, "open_descriptor", _refused)
    weight = torch.arange(600_000.0).reshape(1000, 600)
    state = {"embedding": weight, "head": weight, "upper": weight[:700], "turned": weight.T, "lower": weight[500:]}
    with vault(tmp_path):
        client = memory.VaultClient(tmp_path, ShardName(job="job", submitted_ms=1, world_size=1, rank=0), generation=1)
        for step in (1, 2):
            expected = {name: tensor + 0 for name, tensor in state.items()}
            client.save(step, state)
            weight += 1
            found = client.restore(SealedStep(generation=1, step=step))
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
            assert found["embedding"].data_ptr() == found["head"].data_ptr()
        client.close()


def _refused() -> int:
    raise userfaultfd.NotSupported("not in this test")
