"""What commands print."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from holdfast.cli.output.tables import cell, coloured, json_text, printable, render, seconds


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    assert render(["NAME", "STEPS", "NOTE"], [("a", 7, None), ("long-name", 1234, "x")]).splitlines() == [
        "NAME       STEPS  NOTE",
        "a              7  -",
        "long-name   1234  x",
    ]


def test_times_stay_whole_on_a_narrow_terminal_and_sentences_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    rows = [(datetime(2025, 11, 20, 18, tzinfo=UTC), "one sentence of several words")]
    first = render(["AT", "TEXT"], rows).splitlines()[1]
    assert first.startswith("2025-11-20 18:00:00.000  one")


def test_a_table_without_rows_is_its_head() -> None:
    assert render(["A", "B"], []) == "A  B"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (["n1", "n2"], "n1, n2"),
        (True, "yes"),
        (0.1 + 0.2, "0.3"),
        (datetime(2025, 11, 20, 18, 0, 0, 1234, tzinfo=timezone(timedelta(hours=2))), "2025-11-20 16:00:00.001"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ("one\ntwo\x1b[2Jthree", "one\\ntwo\\x1b[2Jthree"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_a_rank_s_words_never_move_the_cursor() -> None:
    assert printable("a\tb\x1b]0;title\x07", keep="\t") == "a\tb\\x1b]0;title\\x07"


def test_seconds() -> None:
    assert (seconds(None), seconds(0.15), seconds(61)) == ("-", "0.150", "61.000")


def test_json_keeps_numbers_times_and_ids() -> None:
    row = {
        "n": Decimal("1.5"),
        "at": datetime(2025, 11, 20, tzinfo=UTC),
        "id": UUID(int=1),
        "nodes": ["n1"],
        "other": range(2),
        "nothing": None,
    }
    assert msgspec.json.decode(json_text(row, indent=2)) == {
        "n": 1.5,
        "at": "2025-11-20T00:00:00Z",
        "id": "00000000-0000-0000-0000-000000000001",
        "nodes": ["n1"],
        "other": "range(0, 2)",
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m\tnext", "\x1b[1;31mred\x1b[0m\tnext"),
        ("\r 50%|#####", "\r 50%|#####"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[31", "\\x1b[31"),
    ],
)
def test_a_ranks_output_keeps_its_colours_and_no_other_control(printed: str, shown: str) -> None:
    assert coloured(printed) == shown
