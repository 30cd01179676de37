"""Every event has a line of plain English, except samples that come every second."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.events import (
    EVENT_TYPES,
    CredentialsChanged,
    Decision,
    Event,
    GenerationStarted,
    NodeLost,
    ProcessExited,
)
from holdfast.events.parts.ranks import RankException
from holdfast.events.summaries import _TEMPLATES, _sentence, summary
from holdfast.fresh_ids import uuid7

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLES = {"progress", "steps_measured"}


def event(of: type[Event], /, **fields: Any) -> Event:
    return of(id=uuid7(), at=NOW, source="test", job="job", **fields)


def test_every_type_has_a_sentence_of_its_own_or_a_reason() -> None:
    for name, kind in EVENT_TYPES.items():
        has_sentence = kind in _TEMPLATES or _sentence.dispatch(kind) is not _sentence.dispatch(Event)
        assert has_sentence is not (name in SAMPLES) or issubclass(kind, Decision), name


RAISED = RankException(type="ValueError", message="bad\nsecond", traceback="")
FRAMED = RankException(type="ChildFailedError", message="\n====\ntrain.py FAILED\n----\n", traceback="")
EXITED: dict[str, Any] = {"rank": 3, "local_rank": 1, "exited_at": NOW}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (event(ProcessExited, **EXITED, signal=9), "rank 3 was killed by signal 9, before any step"),
        (event(ProcessExited, **EXITED, exception=RAISED, step=4), "rank 3 raised ValueError: bad, last step 4"),
        (
            event(ProcessExited, **EXITED, exception=FRAMED),
            "rank 3 raised ChildFailedError: train.py FAILED, before any step",
        ),
        (event(ProcessExited, **EXITED, exit_code=1, step=0), "rank 3 ended with exit code 1, last step 0"),
        (event(ProcessExited, **EXITED), "rank 3 is gone: no exit status, before any step"),
        (event(NodeLost, last_heard_at=NOW, silent_s=3), "no heartbeat for 3.0 s"),
        (
            event(
                GenerationStarted,
                generation=2,
                nodes=("a",),
                world_size=1,
                restore_step=3,
                restore_at_most=5,
                reason="bad",
            ),
            "generation 2 on a from step 3, none after 5: bad",
        ),
        (
            event(CredentialsChanged, change="renewed", users=("ckpt", "n-1"), by="root"),
            "new passwords for ckpt, n-1 by root",
        ),
        (
            event(CredentialsChanged, change="renewed", users=("ckpt",), kind="order_key"),
            "new keys to sign orders for ckpt",
        ),
        (event(CredentialsChanged, change="revoked", users=("n-1",), by="root"), "n-1 was revoked by root"),
    ],
)
def test_sentences(of: Event, expected: str) -> None:
    assert summary(of) == expected
