"""What is asked of CUDA where torch's device-agnostic interface lacks it; no GPU is here, so of a stand-in."""

from __future__ import annotations

import pytest
import torch

from holdfast.trainer.device.adapters import adapter_of


def test_a_host_that_waits_for_copies_from_cuda_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", dict)
    assert adapter_of("cuda").event(torch.device("cuda", 0)) == {"blocking": True}
