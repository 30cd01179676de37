"""The rules as data: each finds its own examples and no rule before it does; harmless lines are left alone."""

import re
import time

import pytest

from holdfast.engines.crash.log import LINE_CHARS_MAX, dissect
from holdfast.engines.crash.rule_matches import rule_matches
from holdfast.engines.crash.rules import RulesRefused, parsed, rule_book
from holdfast.symptoms import Symptom

BOOK = rule_book()
EXAMPLES = [(one.rule.name, example) for one in BOOK.compiled for example in one.rule.examples]
FRIENDS = [(one.rule.name, friend) for one in BOOK.compiled for friend in one.rule.friends]

RULE = """
anchors = ["x"]
block_anchors = ["x"]
[[rule]]
name = "one"
symptom = "segfault"
root = "unknown"
hand = "first"
confidence = 0.5
advice = "a"
"""


def met(line: str) -> str | None:
    lines = [dissect(one, number) for number, one in enumerate(line.splitlines(), 1)]
    found = rule_matches(BOOK, lines, file="log", rank=None)
    return found[0].rule.name if found else None


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_an_example_meets_its_rule(name: str, example: str) -> None:
    assert met(example) == name


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_an_example_is_not_skipped_while_reading(name: str, example: str) -> None:
    raw = example.encode()
    assert BOOK.line_filter.in_block(raw), f"block_anchors: none is in the example of {name}"
    assert BOOK.line_filter.in_line(raw, LINE_CHARS_MAX), f"anchors: none is in the example of {name}"


@pytest.mark.parametrize(("name", "friend"), FRIENDS)
def test_a_harmless_line_does_not_meet_the_rule(name: str, friend: str) -> None:
    assert met(friend) != name


def test_every_rule_that_lines_meet_has_an_example() -> None:
    assert [one.rule.name for one in BOOK.compiled if one.rule.where != "code" and not one.rule.examples] == []


def test_every_symptom_of_a_rule_has_a_row_of_table_one() -> None:
    assert {one.rule.symptom for one in BOOK.compiled if not one.rule.symptom.row} <= {Symptom.UNKNOWN}


@pytest.mark.parametrize(
    "line",
    [
        "args: error_on_nan=True timeout=600 nan_policy=raise",
        "step 12 loss 2.3 errors 0 failed 0",
        "INFO: retry succeeded after Connection reset by peer",
        "node-0:1:1 [0] NCCL INFO NET/IB : No device found.",
        "node-0:1:1 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "    raise RuntimeError('CUDA out of memory')",
        "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated",
        "downloading: killed processes are restarted automatically",
        "[INFO] preemption is enabled for this queue",
        "iteration 100 | number of nan iterations: 0 | loss scale: 1.0",
        "WARNING:root:NaN or Inf found in input tensor.",
        "faulthandler is registered for SIGSEGV and SIGABRT",
        "Killed 3 stale workers of an earlier run",
        "resumed; job preempted: False",
        "FATAL: cannot decode image 12.jpg",
        "[W socket.cpp:436] [c10d] The server socket has failed to bind (errno: 98 - Address already in use).",
        "Epoch 3: val_loss did not improve, exit criterion not met",
        "health: hang detected: 0, stragglers: 0",
        "[ 3.1] amdgpu 0000:c1:00.0: amdgpu: ring comp_1.1.1 uses VM inv eng 9 on hub 0",
        "I external/tsl/x.cc:551] /job:jax_worker/replica:0/task:12 has connected to coordination service.",
        "multi node topology is disabled; NVLink training completed",
    ],
)
def test_ordinary_output_meets_no_rule(line: str) -> None:
    assert met(line) is None


HOSTILE = (
    "a",
    "1",
    "_",
    " ",
    "/",
    "1, ",
    "a.",
    "1-",
    "ibv_a",
    "a: ",
    "loss 1 ",
    "rank 1 ",
    "NCCL WARN ",
    "error: ",
    "nan",
)


def cost_s(pattern: re.Pattern[str], line: str) -> float:
    begun = time.process_time()
    pattern.search(line)
    return time.process_time() - begun


def test_no_pattern_takes_long_for_any_line() -> None:
    patterns = {each.pattern: each for one in BOOK.compiled for each in (one.pattern, one.unless) if each}
    lines = [(unit * LINE_CHARS_MAX)[: 2 * LINE_CHARS_MAX] for unit in HOSTILE]
    # A pattern whose time grows with the square of the length takes ten times this limit.
    slow = [
        name
        for name, pattern in patterns.items()
        for line in lines
        if cost_s(pattern, line) > 0.01 and min(cost_s(pattern, line) for _ in range(5)) > 0.01
    ]
    assert slow == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RULE, "rule one: neither patterns nor types"),
        (RULE + "patterns = ['(']\n", "rule one: "),
        (RULE.replace("0.5", "1.5") + "patterns = ['x']\n", "rule one: confidence is 1.5"),
        (RULE.replace("segfault", "segfalt") + "patterns = ['x']\n", "segfalt"),
        (RULE + "pattern = 'x'\n", "pattern"),
        (
            RULE + "patterns = ['x']\n" + RULE.partition("]\n[[")[2].join(["[[", "patterns = ['x']\n"]),
            "two rules have one name",
        ),
        ("rule = [", "the rules cannot be read"),
    ],
)
def test_rules_that_are_not_as_they_must_be_are_refused(text: str, why: str) -> None:
    with pytest.raises(RulesRefused, match="(?s)" + why.replace("(", r"\(")):
        parsed(text)
