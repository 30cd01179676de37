"""Training that went on with numbers that are not finite."""

import pytest

from holdfast.engines.crash import diagnose
from holdfast.engines.crash.bad_steps import bad_steps
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan
from holdfast.symptoms import Symptom

FINE = "step 7 loss 2.1 lr 0.1"
INTERRUPT = 'Traceback (most recent call last):\n  File "/job/t.py", line 8, in <module>\nKeyboardInterrupt\n'


@pytest.mark.parametrize(
    "line",
    [
        "step 8 loss nan lr 0.1",
        " iteration 8/ 500 | lm loss: NAN | loss scale: 1.0 | number of nan iterations: 0 |",
        " iteration 8/ 500 | loss scale: 1.0 | grad norm: nan | number of nan iterations: 0 |",
        "{'loss': nan, 'grad_norm': 1.2, 'learning_rate': 9.7e-06, 'epoch': 0.53}",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9.7e-06, 'epoch': 0.53}",
        "Epoch 3: 10%|#   | 101/1000 [00:50<07:30, 2.00it/s, v_num=1, train_loss=nan]",
        "epoch 8 | loss_total: inf | 3.2 s",
    ],
)
def test_steps_that_stay_bad_count(line: str) -> None:
    assert bad_steps([FINE, line, "saved", line, line]) == (1, 3, 4)
    assert bad_steps([line, line]) == ()
    assert bad_steps([line, line, line, FINE]) == ()


@pytest.mark.parametrize(
    "line",
    [
        FINE,
        "{'loss': 2.1, 'grad_norm': inf, 'epoch': 0.02}",
        "step 8 loss 2.1 loss scale nan",
        "Epoch 0: 10%|#   | 101/1000 [00:50<07:30, train_loss=2.1, val_loss=nan]",
        "validation lm loss: nan | best loss: nan",
        "loss is finite, nan checks are on",
        "the loss of nano models",
        "args: check_for_nan_in_loss=True",
    ],
)
def test_an_overflow_or_a_word_is_no_bad_step(line: str) -> None:
    assert bad_steps([line, line, line, line]) == ()


def of(log: str) -> Symptom:
    scan = LogScan("log", rule_book().line_filter)
    scan.feed(log.encode())
    return diagnose([scan.end()]).symptom


def test_bad_numbers_explain_what_somebody_ended_and_nothing_that_failed() -> None:
    bad = "".join(f"step {number} loss nan lr 0.1\n" for number in range(8, 12))
    assert of(f"{FINE}\n{bad}") is Symptom.NAN_VALUE
    assert of(f"{FINE}\n{bad}{INTERRUPT}") is Symptom.NAN_VALUE
    assert of(f"{FINE}\n{bad}RuntimeError: CUDA error: uncorrectable ECC error encountered\n") is Symptom.ECC_ERROR


def test_each_drawing_of_a_progress_bar_is_a_step() -> None:
    drawn = "".join(f"\rEpoch 0: {number}/100 [00:01<01:40, loss=nan]" for number in range(1, 5))
    assert of(drawn + "\n") is Symptom.NAN_VALUE
