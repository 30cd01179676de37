"""The lines that `holdfast run` says of a job."""

import io

from holdfast.cli.status_line import StatusLine


def test_control_characters_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    line = StatusLine("job-1", out)
    line.say("a reason\x1b[2J\nand [holdfast] a forged line")
    line.say("Traceback:\n\tone\x07", keep="\n\t")
    assert out.getvalue() == (
        "[holdfast] a reason\\x1b[2J\\nand [holdfast] a forged line\n[holdfast] Traceback:\n\tone\\x07\n"
    )
