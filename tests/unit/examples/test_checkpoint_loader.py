"""The example's loader: its position is the whole of its state."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOKENS = 4
WINDOWS = 24
CORPUS = bytes(range(WINDOWS * TOKENS + 1))


@pytest.fixture(scope="module")
def data() -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / "gpt" / "data.py"
    spec = importlib.util.spec_from_file_location("gpt_data", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loader(data: ModuleType, *, seed: int = 1, batch: int = 2, dp_rank: int = 0, dp_size: int = 2):
    return data.Loader(CORPUS, seed=seed, tokens=TOKENS, batch=batch, dp_rank=dp_rank, dp_size=dp_size)


def starts(inputs: torch.Tensor) -> list[int]:
    return [int(row[0]) for row in inputs]


def test_each_window_is_trained_once_an_epoch(data: ModuleType) -> None:
    ranks = [loader(data, dp_rank=rank) for rank in range(2)]
    epochs = []
    for _ in range(2):
        seen = Counter(start for _ in range(WINDOWS // 4) for rank in ranks for start in starts(rank.next_batch()[0]))
        assert seen == {window * TOKENS: 1 for window in range(WINDOWS)}
        epochs.append(list(seen))
    assert epochs[0] != epochs[1]


def test_targets_are_the_inputs_one_byte_further(data: ModuleType) -> None:
    inputs, targets = loader(data).next_batch()
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(targets, inputs + 1)


def test_a_restored_loader_goes_on_where_the_saved_one_stood(data: ModuleType) -> None:
    original, resumed = loader(data), loader(data)
    for _ in range(7):
        original.next_batch()
    resumed.load_state_dict(original.state_dict())
    for _ in range(7):
        assert torch.equal(original.next_batch()[0], resumed.next_batch()[0])


def test_the_position_means_the_same_on_another_number_of_ranks(data: ModuleType) -> None:
    two = [loader(data, dp_rank=rank, dp_size=2) for rank in range(2)]
    before = [start for rank in two for start in starts(rank.next_batch()[0])]
    one = loader(data, batch=4, dp_size=1)
    one.load_state_dict(two[0].state_dict())
    after = [start for _ in range(5) for start in starts(one.next_batch()[0])]
    assert sorted(before + after) == [window * TOKENS for window in range(WINDOWS)]


def test_other_batches_are_refused_with_the_difference(data: ModuleType) -> None:
    saved = loader(data, seed=1).state_dict()
    with pytest.raises(ValueError, match="seed 1 then, 2 now"):
        loader(data, seed=2).load_state_dict(saved)


def test_a_corpus_too_short_for_one_step_is_refused(data: ModuleType) -> None:
    with pytest.raises(ValueError, match="24 windows of 4 tokens and one step takes 26"):
        loader(data, batch=13)


def test_the_corpus_is_the_same_every_time_and_bounded(data: ModuleType) -> None:
    corpus = data.read_corpus(100_000)
    assert len(corpus) == 100_000
    assert corpus == data.read_corpus(100_000)
    assert b"import" in corpus
