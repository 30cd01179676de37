"""`holdfast classify`: what it reads, prints and refuses."""

import gzip
import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands.diagnosis.classify import UNKNOWN, classify, parse_exit_codes

TRACE = "Traceback (most recent call last):\n  File \"/job/t.py\", line 2, in <module>\nKeyError: 'a'\n"
LOST = "RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.2]:31231\n"


def run(*args: str, given: str | None = None) -> Result:
    return CliRunner().invoke(classify, args, input=given)


def test_a_directory_of_logs_with_gz_and_a_rank_for_each(tmp_path: Path) -> None:
    (tmp_path / "rank-0.err").write_text(LOST)
    (tmp_path / "rank-1.err.gz").write_bytes(gzip.compress(TRACE.encode()))
    (tmp_path / "model.bin").write_bytes(b"\0" * 100)
    result = run(str(tmp_path))
    said = json.loads(result.stdout)
    assert (result.exit_code, said["symptom"], said["table_one"], said["root"], said["first_rank"]) == (
        0,
        "user_code_error",
        "code_data_adjustment",
        "user_code",
        1,
    )
    assert said["evidence"][0] == {
        "rank": 1,
        "file": str(tmp_path / "rank-1.err.gz"),
        "line": 3,
        "text": "KeyError: 'a'",
    }
    assert [other["rank"] for other in said["others"]] == [0]


def test_pipes_that_are_written_plain_and_packed(tmp_path: Path) -> None:
    """As `classify <(cat rank-0.err.gz)`."""
    contents = {"rank-0": gzip.compress(LOST.encode()), "rank-1": TRACE.encode()}
    for name, data in contents.items():
        os.mkfifo(tmp_path / name)
        threading.Thread(target=(tmp_path / name).write_bytes, args=(data,)).start()
    result = run(*(str(tmp_path / name) for name in contents))
    said = json.loads(result.stdout)
    assert (result.exit_code, said["symptom"], said["first_rank"]) == (0, "user_code_error", 1)
    assert [other["rank"] for other in said["others"]] == [0]


def test_standard_input_and_words_for_people() -> None:
    result = run("--text", "-", given=TRACE)
    assert result.exit_code == 0
    assert "symptom     user_code_error (code_data_adjustment)" in result.stdout
    assert "-:3: KeyError: 'a'" in result.stdout


def test_unknown_has_an_exit_code_of_its_own() -> None:
    result = run("-", given="step 1 loss 2.0\n")
    assert (result.exit_code, json.loads(result.stdout)["symptom"]) == (UNKNOWN, "unknown")


def test_exit_codes_alone_may_tell() -> None:
    said = json.loads(run("--exit-codes", "0=1,3=139").stdout)
    assert (said["symptom"], said["first_rank"]) == ("segfault", 3)


def test_exit_codes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "codes.json"
    file.write_text('{"0": 1, "3": -9}')
    assert parse_exit_codes(str(file)) == {0: 1, 3: -9}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "give a log"),
        (("nowhere.log",), "nowhere.log is not there"),
        (("--exit-codes", "0=x"), "give RANK=CODE"),
        (("--exit-codes", "nowhere.json"), "give RANK=CODE"),
        (("--exit-codes", "-1=3"), "a rank is not negative"),
        (("--exit-codes", "0=999"), "a code from -64 to 255"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_cure(args: tuple[str, ...], why: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert why in result.stderr


def test_a_directory_without_logs_and_a_broken_gz_are_refused(tmp_path: Path) -> None:
    assert "has no logs" in run(str(tmp_path)).stderr
    broken = tmp_path / "rank-0.log.gz"
    broken.write_bytes(gzip.compress(b"x" * 10_000)[:40])
    assert f"{broken} cannot be read" in run(str(broken)).stderr


def test_what_a_log_holds_does_not_reach_the_terminal() -> None:
    result = run("--text", "-", given="\x1b]0;owned\x07KeyError: 'a\x1b[2J'\n" + TRACE.replace("'a'", "'\x07'"))
    assert "\x07" not in result.stdout and "\x1b" not in result.stdout
