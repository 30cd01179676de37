"""Stacks made comparable between nodes: no addresses, install prefixes, wrappers or version noise. Pure."""

from __future__ import annotations

import re

import msgspec

from holdfast.events.parts.traces import Frame

_LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python\d[\d.]*t?/(?:lib-dynload/)?|.*\.zip/")
_PYTHON = re.compile(r"\.py[xiw]?$|^<.*>$|ipython-input|ipykernel")
_NOTEBOOK = re.compile(r"ipython-input|ipykernel")
_COMPILED = re.compile(r"torchinductor_[^/]*/|/inductor_cache/")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NUMBERED = re.compile(r"[._]\d+(?=>|$)")
_CLONE = re.compile(r"(?:\.(?:constprop|isra|part|cold|lto_priv|llvm)(?:\.\d+)?)+$|@+[A-Z]\w*[\d.]*$|::h[0-9a-f]{16}$")
_MANGLED_PART = re.compile(r"(\d+)")

_WRAPPERS = frozenset(
    {
        ("wrapper", "c10d_logger.py"),
        ("decorate_context", "_contextlib.py"),
        ("_call_impl", "module.py"),
        ("_wrapped_call_impl", "module.py"),
        ("inner", "contextlib.py"),
        ("_fn", "eval_frame.py"),
        ("wrapped_fn", "nvtx.py"),
        ("log_wrapper", "comm.py"),
        ("wrapper", "collectives.py"),
        ("_run_code", "runpy.py"),
        ("_run_code", "<frozen runpy>"),
        ("_run_module_as_main", "runpy.py"),
        ("_run_module_as_main", "<frozen runpy>"),
        ("_bootstrap", "threading.py"),
        ("_bootstrap_inner", "threading.py"),
        ("run", "threading.py"),
    }
)
_PROCESS_ENTRIES = frozenset({("_bootstrap", "process.py"), ("_main", "spawn.py"), ("_launch", "popen_fork.py")})


class Call(msgspec.Struct, frozen=True):
    """One comparable call. `path`: the file within its library, else as given."""

    function: str
    file: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file})"


class Stack(msgspec.Struct, frozen=True):
    """One thread's calls, innermost first; `native`: compiled symbols called by the innermost Python call."""

    calls: tuple[Call, ...]
    native: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Functions and files without lines, compared first."""
        return tuple(str(call) for call in self.calls)

    @property
    def lines(self) -> tuple[int, ...]:
        """Lines of the callers, compared next. The innermost line is left out: a waiting loop changes it."""
        return tuple(call.line for call in self.calls[1:])


def normalised(frames: tuple[Frame, ...]) -> Stack:
    """Return a thread's calls without what differs between nodes. Compiled calls among Python calls are dropped; those
    called by the innermost Python call are kept apart. Callers of a forked process's entry belong to its parent and are
    dropped as well."""
    calls: list[Call] = []
    native: list[str] = []
    for frame in frames:
        if not is_python(frame):
            if not calls and (symbol := symbol_of(frame.function)):
                native.append(symbol)
            continue
        call = _call(frame)
        if (call.function, call.file) in _PROCESS_ENTRIES:
            break
        if (call.function, call.file) not in _WRAPPERS:
            calls.append(call)
    return Stack(tuple(calls), tuple(native))


def is_python(frame: Frame) -> bool:
    """True if a frame is Python's, not compiled code's."""
    if frame.function.startswith("0x"):
        return False
    return bool(_PYTHON.search(frame.file)) or frame.function == "<module>" or (not frame.file and frame.line > 0)


def _call(frame: Frame) -> Call:
    path = frame.file.replace("\\", "/")
    path = _LIBRARY.sub("", path, count=1)
    if _NOTEBOOK.search(path):
        path = "<notebook>"
    elif _COMPILED.search(path):
        path = "<inductor>"
    elif path.startswith("<"):
        path = _NUMBERED.sub(
            "", path.replace("<frozen importlib._bootstrap_external>", "<frozen importlib._bootstrap>")
        )
    folder, _, name = path.rpartition("/")
    if name == "__init__.py" and folder:
        name = f"{folder.rpartition('/')[2]}/{name}"
    function = frame.function.rpartition(".")[2] or frame.function
    if resumed := _RESUMED.match(function):
        function = resumed[1]
    return Call(_ADDRESS.sub("0x", function), name, path, frame.line)


def symbol_of(function: str) -> str:
    """Return a compiled symbol without templates, parameters, clones and addresses; "" for a bare address."""
    if function.startswith("0x"):
        return ""
    name = _demangled(function) if function.startswith("_Z") else function
    name = _CLONE.sub("", name)
    name = _without_brackets(_without_brackets(name, "<", ">"), "(", ")")
    name = _ADDRESS.sub("", name).replace(" const", "").strip()
    return name.rpartition(" ")[2] or name


def _without_brackets(text: str, opening: str, closing: str) -> str:
    """Return the text outside brackets. `operator<` and anonymous namespaces lose theirs, equally on every node."""
    if opening not in text:
        return text
    depth, kept = 0, []
    for character in text.replace("->", "__"):
        if character == opening:
            depth += 1
        elif character == closing:
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(character)
    return "".join(kept)


def _demangled(symbol: str) -> str:
    """Return an Itanium-mangled symbol's names without parameters: `c10d::Work::wait` for `_ZN4c10d4Work4waitE...`."""
    rest = symbol[2:]
    is_nested = rest.startswith("N")
    rest = rest.lstrip("NKL") if is_nested else rest.lstrip("L")
    names: list[str] = []
    while found := _MANGLED_PART.match(rest):
        size = int(found[1])
        names.append(rest[found.end() : found.end() + size])
        rest = rest[found.end() + size :]
        if not is_nested:
            break
    return "::".join(names) or symbol
