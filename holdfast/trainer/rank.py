"""The frame of a new rank around the user's script, forked from a zygote or run as `python -m holdfast.trainer.rank`.

The script runs as `python script.py` or `python -m module` would run it. Around it: the ledger, the hooks, a record of
the exception that ends it, and an end that cannot fail late.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import importlib.util
import linecache
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

import msgspec

from holdfast.code.relocation import DIRECTORY_VARIABLE, ROOT_VARIABLE, relocate, relocate_search_path
from holdfast.events.parts.ranks import RankException
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.spawned_ledger import take_over
from holdfast.node.rank_variables import SCRIPT_LINK
from holdfast.trainer import replay_run
from holdfast.trainer.ahead import device_used
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.open_files import WRITTEN_AFTER_FAILURE_S, WRITTEN_WITHIN_S, note_frozen, write_open_files
from holdfast.trainer.phases import bind, binding
from holdfast.trainer.steps import log_lines

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
LEDGER_VARIABLE = "HOLDFAST_LEDGER"
GENERATION_VARIABLE = "HOLDFAST_GENERATION"
MESSAGE_CHARS_MAX = 4_096
_HOOKS = (f"{Path(install_hooks.__file__).parent}{os.sep}", f"{Path(log_lines.__file__).parent}{os.sep}")
"""Directories of what is called between a script and torch."""
TRACEBACK_CHARS_MAX = 65_536


class ScriptNotFound(Exception):
    """The script or module to run does not exist."""


def main(argv: Sequence[str]) -> NoReturn:
    """Run `[-m] script [args...]`, with the rank's environment already in place."""
    arguments = list(argv)
    is_module = arguments[:1] == ["-m"]
    if is_module:
        del arguments[0]
    if not arguments:
        sys.stderr.write("usage: python -m holdfast.trainer.rank [-m] SCRIPT [ARGS...]\n")
        raise SystemExit(2)
    run(arguments[0], arguments[1:], is_module=is_module)


def run(script: str, args: Sequence[str], *, is_module: bool) -> NoReturn:
    """Run the script as `__main__` and end the process with its exit code."""
    path = os.environ.get(LEDGER_VARIABLE)
    if path:
        rank, generation = int(os.environ["RANK"]), int(os.environ.get(GENERATION_VARIABLE, "0"))
        ring = RingWriter(ring_path(path), rank=rank, generation=generation)
        bind(LedgerWriter(path, rank=rank, generation=generation), ring)
        device_used.begin()
    replay_run.begin()
    install_hooks.install()
    log_lines.watch()
    faulthandler.enable()
    _lead_into_version()
    install_hooks.keep_checkpoints()
    note_frozen()
    code = _execute(script, args, is_module)
    if code == 0 and binding.recorder is not None:
        binding.recorder.ended()
    write_behind = sys.modules.get("holdfast.trainer.write_behind.switch_on")
    if code == 0 and write_behind is not None and not write_behind.finished():
        code = 1
    _end(code)


def _execute(script: str, args: Sequence[str], is_module: bool) -> int:
    try:
        script = script if is_module else _as_named(script)
        module, code = _load_module(script) if is_module else _load_script(script)
        sys.argv = [str(module.__file__) if is_module else script, *args]
        # A script may execute itself again by it.
        sys.orig_argv[:] = [sys.executable, "-u", *(("-m",) if is_module else ()), script, *args]
        sys.modules["__main__"] = module
        exec(code, module.__dict__)  # noqa: S102 - running the user's script is what a rank is for
    except SystemExit as request:
        return _exit_code(request)
    except KeyboardInterrupt as error:
        _trim(error)
        return _show(error, 130)
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is recorded, then ends the process
        _trim(error)
        _record(error)
        return _show(error, 1)
    return 0


def _as_named(script: str) -> str:
    """Return the link by which the script was named, as Python's own `__file__` is; the script if none leads to it."""
    link = os.environ.get(SCRIPT_LINK, "")
    return link if link and os.path.realpath(link) == os.path.realpath(script) else script


def _load_script(script: str) -> tuple[ModuleType, CodeType]:
    _lead_path(str(Path(script).resolve().parent))
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        raise ScriptNotFound(f"cannot read the script {script!r} from {os.getcwd()}: {error.strerror}") from None
    module = ModuleType("__main__")
    module.__file__ = script
    # Without a spec, as for a script: multiprocessing's spawn decides by it how to import the main module again.
    module.__spec__ = None
    module.__loader__ = SourceFileLoader("__main__", script)
    module.__cached__ = None  # type: ignore[attr-defined]
    # The module: what it has here is a dictionary, which scripts that set a builtin do not expect.
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    module.__annotations__ = {}
    return module, compile(source, script, "exec", dont_inherit=True)


def _load_module(name: str) -> tuple[ModuleType, CodeType]:
    _lead_path(_moved(os.getcwd()))
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _spec_of(name)
    code = spec.loader.get_code(name) if spec is not None and hasattr(spec.loader, "get_code") else None  # type: ignore[union-attr]
    if spec is None or code is None:
        raise ScriptNotFound(f"no module named {name!r} on {os.pathsep.join(sys.path)}")
    module = ModuleType("__main__", None)
    module.__file__ = spec.origin
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    module.__annotations__ = {}
    return module, code


def _spec_of(name: str) -> ModuleSpec | None:
    """Return None also if a package above the module is missing, but raise what importing such a package raises."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _lead_into_version() -> None:
    """Import what lies in the job's source tree from the version that this rank runs, installed in place or not."""
    root, place = os.environ.get(ROOT_VARIABLE), os.environ.get(DIRECTORY_VARIABLE)
    if root and place:
        sys.path[:] = relocate_search_path(sys.path, root, place, os.getcwd(), os.path.exists)


def _moved(path: str) -> str:
    root, place = os.environ.get(ROOT_VARIABLE), os.environ.get(DIRECTORY_VARIABLE)
    return relocate(path, root, place, os.getcwd()) if root and place else path


def _lead_path(folder: str) -> None:
    """Put the folder first on the import path, in place of what `python -m` may have put there."""
    if sys.flags.safe_path:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    _print_error(str(request.code))
    return 1


def _trim(error: BaseException) -> None:
    """Let the traceback begin at the script's own first line, and leave out the calls that hooks have put between."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_code.co_filename == __file__:
        part = part.tb_next
    # Without one, the script was not run: it is no Python, and the error names its line.
    if part is not None or isinstance(error, SyntaxError):
        error.__traceback__ = part
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        _leave_out_hooks(one.__traceback__)
        one = one.__cause__ or one.__context__


def _leave_out_hooks(part: TracebackType | None) -> None:
    while part is not None:
        following = part.tb_next
        while following is not None and _is_of_hook(following):
            following = following.tb_next
        part.tb_next = following
        part = following


def _is_of_hook(part: TracebackType) -> bool:
    """Return True if a hook only passes a call on. What a hook itself raises is to be seen."""
    name = part.tb_frame.f_code.co_filename
    if not name.startswith(_HOOKS):
        return False
    return part.tb_next is not None or "original(" in linecache.getline(name, part.tb_lineno)


def _show(error: BaseException, code: int) -> int:
    """Print what ended the script, as the interpreter would. Return the exit code, which the script's hook may set."""
    if isinstance(error, ScriptNotFound):
        _print_error(f"holdfast: {error}")
        return code
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as request:
        return _exit_code(request)
    except BaseException as failure:  # noqa: BLE001 - the script's hook failed, and its first error is the cause
        _trim(failure)
        failure.__context__ = None
        for title, one in (("Error in sys.excepthook:", failure), ("\nOriginal exception was:", error)):
            _print_error(title)
            sys.__excepthook__(type(one), one, one.__traceback__)
    return code


def _print_error(text: str) -> None:
    """Print a line on stderr; a script may have closed that, or set it to None, where the interpreter takes C's own."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is None:
            os.write(2, f"{text}\n".encode(errors="backslashreplace"))
        else:
            sys.stderr.write(f"{text}\n")


def _record(error: BaseException) -> None:
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if not path:
        return
    lines = traceback.format_exception(error)
    record = RankException(
        type=_encodable(f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")),
        message=_encodable(_text(error)[:MESSAGE_CHARS_MAX]),
        traceback=_encodable("".join(lines)[-TRACEBACK_CHARS_MAX:]),
    )
    part = Path(f"{path}.{os.getpid()}")
    try:
        part.write_bytes(msgspec.json.encode(record))
        part.replace(path)
    except OSError as failure:
        sys.stderr.write(f"holdfast: the exception could not be recorded in {path}: {failure}\n")


def _encodable(text: str) -> str:
    """Return the text as JSON can carry it: names of files that are no UTF-8 reach messages as lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - an exception's own __str__ is user code
        return f"<{type(failure).__name__} while reading the message>"


def _end(code: int) -> NoReturn:
    """Do what the interpreter does at its end, short of tearing it down: that can abort in a thread of a library."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        keep_operators()
        atexit._run_exitfuncs()
        write_open_files(WRITTEN_AFTER_FAILURE_S if code else WRITTEN_WITHIN_S)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        if binding.ledger is not None:
            binding.settle()
            take_over(binding.ledger)
            binding.ledger.end(code)
        os._exit(code)


def keep_operators() -> None:
    """Leave torch's operators registered: a survivor would deregister them for 30 ms that a restart needs."""
    deregister = getattr(sys.modules.get("torch.library"), "_del_library", None)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        alive = finalizer.peek()
        if alive is not None and alive[1] is deregister:
            finalizer.atexit = False


if __name__ == "__main__":
    main(sys.argv[1:])
