"""`holdfast inspect` and `holdfast xid`: what they show, in words and as JSON, and their exit codes."""

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.commands.diagnosis.inspect import inspect
from holdfast.cli.commands.diagnosis.xid import xid
from holdfast.node.inspection_report import InspectedDevice, State, exit_code

LOST = "[  17.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def device(state: State) -> InspectedDevice:
    return InspectedDevice(check="gpu", state=state)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["ok", "absent"], 0),
        (["ok", "hint", "unreadable"], 1),
        (["tolerate", "ok"], 1),
        (["hint", "evict", "unreadable"], 2),
        (["ok", "unreadable"], 3),
        ([], 0),
    ],
)
def test_the_exit_code_is_that_of_nagios(states: list[State], code: int) -> None:
    assert exit_code(tuple(map(device, states))) == code


CONFIG = """
[inspections.commands.fans]
command = "sh -c 'echo fan 3 stands; exit 2'"
confidence = "evict"
[inspections.commands.doors]
command = "sh -c 'echo no sensor; exit 3'"
"""


def test_its_examples_can_be_typed() -> None:
    assert inspect.help is not None
    (words,) = re.findall(r"holdfast inspect (--only .*)", inspect.help)
    assert "there is no check" not in CliRunner().invoke(inspect, words.split()).output


def test_a_machine_is_inspected_without_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(CONFIG)
    words = ["--config", str(file), "--only", "fans", "--only", "doors", "--only", "pressure"]
    shown = CliRunner().invoke(inspect, words)
    assert shown.exit_code == 2, shown.output
    lines = {" ".join(line.split()) for line in shown.output.splitlines()}
    assert {"check device state detail", "fans - evict fan 3 stands"} <= lines
    assert "doors - unreadable the check could not read (exit code 3): no sensor" in lines
    as_json = CliRunner().invoke(inspect, [*words, "--json"])
    found = msgspec.json.decode(as_json.output, type=list[InspectedDevice])
    assert {it.check for it in found} == {"fans", "doors", "pressure"} and as_json.exit_code == 2


def test_a_check_that_is_not_there_is_refused_with_those_that_are() -> None:
    shown = CliRunner().invoke(inspect, ["--only", "clok"])
    assert shown.exit_code == 1 and "there is no check clok: there are clock, container" in shown.output


def test_a_number_is_explained() -> None:
    shown = CliRunner().invoke(xid, ["79", "13"]).output
    assert "xid 79\n  meaning   the GPU is no longer reachable over PCIe" in shown
    assert "evicts the node" in shown and "take the node out of service and restart the machine" in shown
    (first, second) = msgspec.json.decode(CliRunner().invoke(xid, ["79", "13", "--json"]).output)
    assert (first["xid"], first["confidence"], second["confidence"]) == (79, "evict", "hint")


def test_the_lines_of_a_log_are_explained_once_each(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    again, panic = LOST.replace("17.5", "18.5"), "Kernel panic - not syncing: \x1b[31mFatal"
    log.write_text("\n".join([LOST, "some other line", again, panic]))
    shown = CliRunner().invoke(xid, [str(log)]).output
    assert shown.count("xid 79") == 1 and "times     2" in shown and "device    0000:3b:00" in shown
    assert "the kernel panicked" in shown and "\x1b" not in shown
    piped = CliRunner().invoke(xid, ["-"], input="nothing of note\n").output
    assert piped == "no line reports a fault of this machine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["no-such-file"], "there is no file no-such-file"), (["79", "a.log"], "give numbers of Xids, or one file")],
)
def test_what_is_neither_a_number_nor_a_file_is_refused(words: list[str], said: str) -> None:
    shown = CliRunner().invoke(xid, words)
    assert shown.exit_code != 0 and said in shown.output
