"""What the words of an error point to where no rule knows it: a hint, and never a verdict."""

import pytest

from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan
from holdfast.engines.crash.words.topics import Topic, topics
from holdfast.symptoms import Root, Symptom

EXAMPLES = [(topic, text) for topic in topics().topics for text in topic.examples]

HARMLESS = [
    "step 411 loss 2.17 lr 0.0003",
    "WorkerNode failed.",
    "srun: error: gpu-7: task 3: Exited with exit code 1",
    "E cuda_dnn: unable to register the factory of this plugin, one is registered already",
    "the device plugin could not be loaded, falling back to the host",
    "connection lost, will retry in 4 s",
    "[ERROR] could not close the socket of rank 3: failed to disconnect",
    "    raise DeviceError(f'device {n} failed')",
    "see the logs above for the error of the device",
    "OSError: Device or resource busy: 'shards.lock'",
    "Additional error information of the connection:",
    "ERROR the endpoint is not ready yet",
]


def of(text: str, *, by_words: bool = True, codes: dict[int, int] | None = None) -> Diagnosis:
    scan = LogScan("train.log", rule_book().line_filter)
    scan.feed(text.encode())
    return diagnose([scan.end()], codes, by_words=by_words)


@pytest.mark.parametrize(("topic", "text"), EXAMPLES, ids=[topic.name for topic, _ in EXAMPLES])
def test_each_example_meets_its_topic(topic: Topic, text: str) -> None:
    assert topics().of(text, is_exception=text.startswith("RuntimeError")) == topic
    found = of(f"step 3 loss 2.1\n{text}\n")
    assert (found.symptom, found.likely) == (Symptom.UNKNOWN, topic.symptom)


def test_every_topic_has_an_example() -> None:
    assert {topic.name for topic in topics().topics} == {topic.name for topic, _ in EXAMPLES}


@pytest.mark.parametrize("text", HARMLESS)
def test_a_line_that_reports_no_failure_of_its_own_points_to_nothing(text: str) -> None:
    assert topics().of(text) is None


def test_a_hint_is_no_verdict() -> None:
    text = "[rank3]: RuntimeError: xpu 2: command buffer 17 ended with code 0x44\n"
    found = of(text)
    assert (found.symptom, found.likely) == (Symptom.UNKNOWN, Symptom.CUDA_ERROR)
    assert (found.root, found.first_rank, found.confidence, found.rule) == (Root.UNKNOWN, None, 0.0, "")
    assert "its words point to cuda_error" in found.summary
    assert found.evidence[0].rank == 3
    assert of(text, by_words=False).likely is None


def test_what_a_rule_knows_needs_no_hint() -> None:
    guess = "ERROR fabric: ucx endpoint lost\n"
    assert of(guess).likely is Symptom.INFINIBAND_ERROR
    known = "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nKeyError: 'a'\n"
    found = of(guess + known)
    assert (found.rule, found.likely) == ("python_error", None)
    # A rule excludes this remark of a helper that needs no GPU.
    assert of("E cuda_driver.cc:152] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device\n").likely is None


def test_the_exception_precedes_what_was_printed_before_it() -> None:
    printed = "ERROR fabric: ucx endpoint lost\n"
    raised = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nOSError: artifact 7: server error\n'
    assert of(printed + raised).likely is Symptom.EXTERNAL_SERVICE_ERROR


def test_a_rank_that_ended_well_points_to_nothing() -> None:
    text = "[rank0]: ERROR fabric: ucx endpoint lost\n"
    assert of(text, codes={0: 0, 1: 1}).likely is None
    assert of(text, codes={0: 1, 1: 1}).likely is Symptom.INFINIBAND_ERROR


def test_names_of_machines_files_and_programs_point_to_nothing() -> None:
    for text in (
        "gpu-07: the trainer failed for reasons of its own",
        "neuron-agent[4711]: request 7 failed",
        "fatal: /opt/cuda/connect/mount.py has 3 errors",
    ):
        assert topics().of(text) is None
