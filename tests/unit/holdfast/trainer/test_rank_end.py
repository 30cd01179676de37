"""What the end of a rank leaves out: work for a process that goes on, and the calls of hooks in its traceback."""

from __future__ import annotations

import gzip
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import pytest
import torch

from holdfast.node.rank_variables import SCRIPT_LINK
from holdfast.trainer.rank import ERROR_FILE_VARIABLE, _execute, _trim, keep_operators
from holdfast.trainer.steps.loads import _noting


def test_operators_stay_registered_and_what_a_script_wants_done_is_done() -> None:
    registry = weakref.finalize._registry  # type: ignore[attr-defined]
    before = set(registry)
    library = torch.library.Library("holdfast_test", "DEF")  # type: ignore[no-untyped-call]
    (deregister,) = set(registry) - before
    wanted = weakref.finalize(library, print)
    assert deregister.atexit
    keep_operators()
    assert not deregister.atexit
    assert wanted.atexit
    wanted.detach()


def _of_torch(_: str) -> None:
    raise ValueError("of torch")


def test_a_traceback_has_the_scripts_calls_and_torchs_and_no_hooks_between() -> None:
    hooked = _noting(_noting(_of_torch, "f"), "f")
    with pytest.raises(ValueError, match="invalid literal") as of_compiled_code:
        _noting(int, "f")("weights.pt")
    _trim(of_compiled_code.value)
    assert len(traceback.extract_tb(of_compiled_code.value.__traceback__)) == 1
    try:
        try:
            hooked("weights.pt")
        except ValueError as first:
            raise RuntimeError("of the script") from first
    except RuntimeError as error:
        _trim(error)
        names = [entry.name for one in (error, error.__cause__) for entry in traceback.extract_tb(one.__traceback__)]  # type: ignore[union-attr]
        own = "test_a_traceback_has_the_scripts_calls_and_torchs_and_no_hooks_between"
        assert names == [own, own, "_of_torch"]


@pytest.fixture
def main_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script changes is put back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "orig_argv", [*sys.orig_argv])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.mark.usefixtures("main_kept")
def test_a_script_finds_what_the_interpreter_gives_to_its_main_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import inspect, sys\n"
        "if not hasattr(__builtins__, 'profile'):\n    __builtins__.profile = lambda function: function\n"
        "@profile\ndef main(): pass\n"
        "print(inspect.getsource(main), __loader__.get_filename(), __cached__, sys.orig_argv[2:])\n"
        "del __builtins__.profile\n"
    )
    assert _execute(str(script), ("--steps", "3"), is_module=False) == 0
    shown = capsys.readouterr().out
    assert shown == f"@profile\ndef main(): pass\n {script} None ['{script}', '--steps', '3']\n"


def test_a_script_that_is_no_python_is_shown_by_its_own_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nfor x in\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(ERROR_FILE_VARIABLE, raising=False)
    # Process groups of other tests have torch put their rank before each line.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert _execute(str(script), (), is_module=False) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f'  File "{script}", line 2') and shown.endswith("SyntaxError: invalid syntax\n")


@pytest.mark.usefixtures("main_kept")
def test_a_script_that_is_a_link_lies_where_the_link_does_and_imports_from_where_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, copy, link = tmp_path / "train.py", tmp_path / "copy.py", tmp_path / "run" / "link.py"
    for file in (script, copy):
        file.write_text("import sys\nprint(__file__, sys.argv[0], sys.path[0])\n")
    link.parent.mkdir()
    link.symlink_to(script)
    monkeypatch.setenv(SCRIPT_LINK, str(link))
    assert _execute(str(script), (), is_module=False) == 0
    assert capsys.readouterr().out == f"{link} {link} {tmp_path}\n"
    # A copy of another version is not what the link leads to.
    assert _execute(str(copy), (), is_module=False) == 0
    assert capsys.readouterr().out == f"{copy} {copy} {tmp_path}\n"


LEFT_OPEN = """
import csv, ctypes, gzip
table = csv.writer(open("losses.csv", "w"))
table.writerow([1, 2.5])
raw = open("raw.bin", "wb")
raw.write(bytes(100))
packed = gzip.open("packed.gz", "wt")
packed.write("epoch 3")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs(b"of C", ctypes.c_void_p(libc.fopen(b"c.txt", b"w")))
"""
ENDS = {
    "files left open": LEFT_OPEN,
    "files left open and frozen": f"{LEFT_OPEN}import gc\ngc.freeze()\n",
    "a hook that fails": "import sys\nsys.excepthook = lambda *_: 1 / 0\nraise ValueError('of the script')",
    "a hook that ends it": "import sys\nsys.excepthook = lambda *_: sys.exit(7)\nraise ValueError",
    "a message that cannot be printed": "import sys\nsys.stderr = None\nsys.exit('no data')",
}


@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_under_the_interpreter(script: str, tmp_path: Path) -> None:
    ends = []
    for name, frame in (("python", ()), ("rank", ("-m", "holdfast.trainer.rank"))):
        place = tmp_path / name
        place.mkdir()
        file = tmp_path / "train.py"
        file.write_text(script)
        done = subprocess.run([sys.executable, *frame, str(file)], cwd=place, capture_output=True, check=False)
        content = {one.name: one.read_bytes() for one in place.iterdir()}
        if "packed.gz" in content:
            content["packed.gz"] = gzip.decompress(content["packed.gz"])
        ends.append((done.returncode, done.stdout, done.stderr, content))
    assert ends[0] == ends[1]


IN_USE = """
import io, os, sys, threading, time
from holdfast.trainer.open_files import write_open_files
class Tee(io.TextIOBase):
    def writable(self): return True
    def write(self, text): return os.write(1, text.encode())
class Table(io.RawIOBase):
    def writable(self): return True
    def close(self):
        if not self.closed: print("closed")
        super().close()
class Stream(io.BufferedReader): pass
sys.stdout, table = Tee(), Table()
end, _ = os.pipe()
stream = Stream(open(end, "rb", buffering=0))
threading.Thread(target=stream.read, args=(1,), daemon=True).start()
began = time.monotonic()
write_open_files()
print("within", time.monotonic() - began < 20)
os._exit(0)
"""


def test_what_is_read_and_the_streams_of_the_process_stay_open_at_its_end() -> None:
    """A reader's lock is its thread's: to close it took 30 s, in which a crash was not noticed."""
    done = subprocess.run([sys.executable, "-c", IN_USE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("closed\nwithin True\n", "")
