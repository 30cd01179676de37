"""What `holdfast show` prints of the cause."""

from __future__ import annotations

from holdfast.cli.commands.history.show import _diagnosis


def test_a_failure_that_recurs_in_the_same_words_is_shown_once() -> None:
    failed, where = "rank 1 on node-0: ModuleNotFoundError", "rank 1 on node-0:   File train.py, line 4"
    found = {
        "symptom": "import_error",
        "table_one": "",
        "root": "user_code",
        "node": "node-0",
        "proof": "",
        "rule": "import",
        "confidence": 0.88,
        "reason": "a module is missing",
        "advice": "",
        "lines": [failed, where, failed, where, failed],
    }
    assert _diagnosis(found)[2:] == [f"  | {failed}", f"  | {where}"]
