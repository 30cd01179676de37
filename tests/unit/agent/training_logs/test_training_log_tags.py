"""Which tag of a log is which quantity, by the names that trainers give them; and at which step of the ledger."""

from __future__ import annotations

import math

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast_agent.training_logs.readings import TAGS_MAX, StepReading, StepReadings
from holdfast_agent.training_logs.scalars import Scalar
from holdfast_agent.training_logs.step_clock import STEPS_MAX, StepClock
from holdfast_agent.training_logs.tags import KNOWN, Tags


@pytest.mark.parametrize(
    ("tag", "quantity"),
    [
        ("lm loss", "loss"),  # Megatron-LM
        ("grad-norm", "grad_norm"),
        ("learning-rate", "learning_rate"),
        ("train/loss", "loss"),  # Hugging Face Trainer
        ("train/grad_norm", "grad_norm"),
        ("train/learning_rate", "learning_rate"),
        ("train_loss", "loss"),  # Lightning
        ("train_loss_step", "loss"),
        ("loss_metrics/global_avg_loss", "loss"),  # torchtitan
        ("mfu(%)", "mfu"),
        ("Train/Samples/train_loss", "loss"),  # DeepSpeed
        ("Train/Samples/lr", "learning_rate"),
        ("train/CrossEntropyLoss", "loss"),  # OLMo
        ("train/CE loss", "loss"),
        ("optim/total_grad_norm", "grad_norm"),
        ("optim/total grad norm", "grad_norm"),
        ("reduced_train_loss", "loss"),  # NeMo
        ("loss/train/total", "loss"),  # Composer
        ("throughput/tokens_per_sec", "tokens_per_s"),
        ("throughput/device/mfu", "mfu"),
        ("train.loss", "loss"),  # W&B, of a dictionary
        ("loss", "loss"),
        ("mfu", "mfu"),
    ],
)
def test_the_names_of_common_trainers_are_known(tag: str, quantity: str) -> None:
    choice = Tags().choice(tag)
    assert choice is not None and choice.quantity == quantity


@pytest.mark.parametrize(
    "tag",
    [
        "eval/loss",
        "val_loss",
        "val/loss",
        "validation/loss",
        "test loss",
        "lm loss validation",
        "lm loss vs samples",
        "loss-scale",
        "train/loss_epoch",
        "moe/aux_loss",
        "critic/loss",
        "grad-norm vs samples",
        "throughput/device/tokens_per_sec",
        "throughput",
        "train/train_loss",
        "params-norm",
        "",
    ],
)
def test_what_is_not_of_the_training_or_not_the_jobs_is_left_alone(tag: str) -> None:
    assert Tags().choice(tag) is None


@pytest.mark.parametrize("folder", ["validation", "loss_val", "run-3.eval"])
def test_a_folder_may_be_that_of_an_evaluation(folder: str) -> None:
    assert Tags().choice("loss", folder) is None
    assert Tags({"loss": "loss"}).choice("loss", folder) is not None


@pytest.mark.parametrize("folder", ["loss_train", "test", "interval", "medieval-7b", "offline-run-20260101_000000-abc"])
def test_a_folder_that_only_looks_like_it_is_none(folder: str) -> None:
    assert Tags().choice("loss", folder) is not None


def test_a_tag_that_the_user_names_goes_before_all_others() -> None:
    tags = Tags({"loss": "objective/eval_total"})
    choice = tags.choice("objective/eval_total")
    assert choice is not None and choice.quantity == "loss"
    assert tags.choice("train/loss") is None
    assert tags.choice("grad_norm") is not None


def test_every_known_tag_is_of_one_quantity_and_no_evaluation() -> None:
    all_tags = [tag for tags in KNOWN.values() for tag in tags]
    assert len(all_tags) == len(set(all_tags))
    assert all(Tags().choice(tag) for tag in all_tags)


@pytest.mark.parametrize("tags", [{"losses": "x"}, {"loss": " "}])
def test_a_job_with_a_tag_for_nothing_is_refused(tags: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give QUANTITY=TAG"):
        JobSpec(name="job", script="a.py", cwd="/", directory="/d", tags=tags)


def test_numbers_of_one_step_are_one_reading_and_the_best_tag_counts() -> None:
    readings = StepReadings(Tags(), "run")
    first = readings.take(
        [Scalar("loss", 1, 100.0, 7.0), Scalar("grad_norm", 1, 100.1, 2.0), Scalar("mfu", 1, 100.2, 41.0)]
    )
    assert first == [StepReading(1, 100 * 10**9, {"loss": 7.0, "grad_norm": 2.0, "mfu": 0.41})]
    second = readings.take(
        [Scalar("lm loss", 2, 101.0, 5.0), Scalar("loss", 2, 101.0, 9.0), Scalar("other", 2, 101.0, 1.0)]
    )
    assert second == [StepReading(2, 101 * 10**9, {"loss": 5.0})]
    assert readings.chosen == {"loss": "lm loss", "grad_norm": "grad_norm", "mfu": "mfu"}


def test_a_number_that_is_logged_again_at_its_step_is_a_reading_of_its_own() -> None:
    taken = StepReadings(Tags(), "").take([Scalar("loss", 1, 100.0, 7.0), Scalar("loss", 1, 101.0, math.nan)])
    assert [math.isnan(reading.values["loss"]) for reading in taken] == [False, True]


def test_moments_that_are_none_and_tags_without_end_are_left_out() -> None:
    readings = StepReadings(Tags(), "")
    strange = [Scalar("loss", 1, at_s, 1.0) for at_s in (0.0, -5.0, math.nan, math.inf, 1e30)]
    assert readings.take(strange) == []
    readings.take(Scalar(f"tag-{number}", 1, 100.0, 1.0) for number in range(TAGS_MAX + 10))
    assert readings.take([Scalar("lm loss", 1, 100.0, 1.0)]) == []
    assert len(readings.take([Scalar("loss", 1, 100.0, 1.0)])) == 1


def test_what_was_logged_is_of_the_step_that_was_completed_last() -> None:
    clock = StepClock()
    assert clock.step_at(5) is None
    for step in range(10, 20):
        clock.add(step, step * 100)
    assert [clock.step_at(at) for at in (999, 1000, 1099, 1100, 5000)] == [9, 10, 10, 11, 19]


def test_steps_begin_with_the_first_and_long_ago_ones_are_forgotten() -> None:
    clock = StepClock()
    clock.add(0, 100)
    assert clock.step_at(50) == -1
    resumed = StepClock(from_first=False)
    resumed.add(7, 100)
    assert (resumed.step_at(50), resumed.step_at(100)) == (None, 7)
    for step in range(1, STEPS_MAX + 1):
        clock.add(step, 100 + step)
    assert clock.step_at(50) is None and clock.step_at(100 + STEPS_MAX) == STEPS_MAX


def test_a_clock_that_is_set_back_mixes_up_no_steps() -> None:
    clock = StepClock()
    for step, ended in enumerate((100, 200, 150, 300)):
        clock.add(step, ended)
    assert [clock.step_at(at) for at in (150, 200, 250, 300)] == [0, 2, 2, 3]
