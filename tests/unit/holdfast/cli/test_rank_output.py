"""Output of ranks as a person sees it: what is missing is counted, and a line that goes on is one line."""

from __future__ import annotations

from holdfast.cli.follow.rank_output import LogLines, RankOutput


def lines(*text: str, before: int | None = None, rank: int = 0, is_open: bool = False, generation: int = 1) -> LogLines:
    return LogLines(rank, "out", list(text), generation=generation, before=before, is_open=is_open)


def test_lines_that_were_lost_anywhere_are_counted() -> None:
    output = RankOutput()
    assert output.missing(lines("a", "b", before=5)) == 0, "it was not followed from the first one"
    assert output.missing(lines("c", before=7)) == 0
    assert output.missing(lines("g", before=11)) == 3
    assert output.missing(lines("a", before=0)) == 0, "the agent was started again"
    assert output.missing(lines("x", before=0, generation=2)) == 0
    assert output.missing(LogLines(1, "out", ["x"], dropped=4)) == 4, "of an agent of an earlier release"


def test_a_line_that_goes_on_is_one_line_and_other_output_begins_another() -> None:
    output = RankOutput()

    def written(new: LogLines, prefix: str = "") -> str:
        return output.text(new, new.lines, prefix)

    assert written(lines("one", "\r 10 %", is_open=True), "[r0]:") == "[r0]:one\n[r0]:\r 10 %"
    assert written(lines("\r 20 %", is_open=True), "[r0]:") == "\r 20 %" and output.is_open
    assert written(lines("\r100 %", "next"), "[r0]:") == "\r100 %\n[r0]:next\n" and not output.is_open
    written(lines("\r 1 %", is_open=True))
    assert written(lines("of rank 1", rank=1)) == "\nof rank 1\n"
    written(lines("\r 2 %", is_open=True))
    assert not output.end_line(on_terminal=False), "the line is on the standard output, elsewhere"
    assert output.end_line(on_terminal=True) and not output.end_line(on_terminal=True)


def test_a_bar_on_the_standard_error_leaves_a_file_with_the_output_as_it_is() -> None:
    output = RankOutput()
    bar = LogLines(0, "err", ["\r 1 %"], is_open=True)
    assert output.text(bar, bar.lines, "") == "\r 1 %"
    assert output.text(lines("loss 3"), ["loss 3"], "") == "loss 3\n"
    assert output.text(bar, bar.lines, "") == "\r 1 %"
    assert output.text(lines("loss 2"), ["loss 2"], "", on_terminal=True) == "\nloss 2\n"
    assert not output.is_open
