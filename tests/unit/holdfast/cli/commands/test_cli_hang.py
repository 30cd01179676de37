"""What `holdfast hang` prints of a finding: who stands where, who is suspected, and what could not be read."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.cli.commands.diagnosis.hang import _in_words
from holdfast.events import JobTraced
from holdfast.events.parts.ranks import CodePlace, HangSuspect
from holdfast.fresh_ids import uuid7

WAITS = CodePlace(
    kind="rank",
    count=31,
    ranks=tuple(range(31)),
    stack=("wait (/torch/c10d.py:3)",),
    waits_for="all_reduce",
    is_usual=True,
)
STANDS = CodePlace(
    kind="rank", count=1, ranks=(31,), stack=("acquire (/lib/threading.py:7)", "load (/job/data/train.py:9)\x1b[2J")
)
SUSPECT = HangSuspect(
    ranks=(31,), nodes=("node-3",), reason="rank 31 never joined", confidence=0.93, evidence=("rank 31: load",)
)


def printed(**fields: object) -> str:
    about = {"processes": 32, "took_s": 0.9, "still_s": 12.0, "generation": 4, "places": (WAITS, STANDS)}
    finding = JobTraced(
        id=uuid7(),
        at=datetime.now(UTC),
        source="analyzer",
        job="gpt",
        trace=uuid7(),
        **(about | fields),  # type: ignore[arg-type]
    )
    return "\n".join(_in_words(finding))


def test_a_hang_is_told_with_the_stack_of_who_stands_elsewhere() -> None:
    text = printed(suspects=(SUSPECT,), summary="rank 31 never joined; 31 ranks wait", unread=("rank 7, pid 9: gone",))
    assert "job gpt, generation 4: 32 processes in 0.9 s" in text
    assert "all_reduce" in text and "acquire (threading.py:7) < load (train.py:9)" in text
    assert "load (/job/data/train.py:9)" in text, "the whole path stands below"
    assert "no progress for 12.0 s" in text
    assert (
        "suspected: rank 31 on node-3 (93%): rank 31 never joined; 31 ranks wait" in text
        and "  | rank 31: load" in text
    )
    assert "not read: rank 7, pid 9: gone" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (31)" in text
    assert "\x1b" not in text


def test_of_a_job_that_moves_it_is_said_what_a_suspect_is() -> None:
    text = printed(still_s=0.3, working=(31,), unanswered=("node-9",))
    assert "the job makes progress; there is no suspect" in text and "no answer from node-9" in text
    assert "computing" not in text, "as it should"
    assert "rank 31: is computing, reading or writing" in printed(working=(31,))
    text = printed(still_s=0.3, suspects=(SUSPECT,))
    assert "  rank 31 on node-3: rank 31 never joined" in text and "suspected" not in text and "93%" not in text


def test_of_several_suspects_each_has_its_reason_and_the_summary_stands_below() -> None:
    other = HangSuspect(ranks=(1, 2), nodes=("node-0",), reason="they joined late", confidence=0.4)
    text = printed(suspects=(SUSPECT, other), summary="two places")
    assert "one of the ranks 1, 2 on node-0 (40%): they joined late" in text
    assert "rank 31 never joined" in text and text.endswith("two places")


def test_what_started_a_rank_is_not_where_it_stands() -> None:
    of_holdfast = ("_execute (/lib/holdfast/trainer/rank.py:7)", "main (/lib/holdfast_agent/zygote.py:9)")
    place = CodePlace(kind="data_loader", count=1, ranks=(3,), stack=("load (/job/holdfast.py:5)", *of_holdfast))
    text = printed(places=(place,))
    assert "load (holdfast.py:5)" in text and "data_loader of rank 3:" in text and "_execute" not in text
    assert "_execute (rank.py:7)" in printed(places=(CodePlace(kind="rank", count=1, stack=of_holdfast),))
