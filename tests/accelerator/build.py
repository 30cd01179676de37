"""The device's library: built with the compiler and the headers of the torch that is installed, kept for later runs.

torch's C++ interface is that of one release, so a build is kept by torch's version, the sources, Python and compiler.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
MODULE = "sim_device"
OLDEST_TORCH = (2, 13)
"""The headers that it was written for; older ones lack parts of the interface."""
BUILDS_KEPT = 4

_FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wno-unused-function")


class BuildFailed(RuntimeError):
    """The compiler refused the sources; the message has its last lines."""


def why_not() -> str | None:
    """Return why the device cannot be built on this machine; None: it can."""
    version = importlib.metadata.version("torch")
    if sys.platform != "linux":
        return "the simulated accelerator needs Linux"
    if shutil.which("g++") is None:
        return "no g++: the simulated accelerator cannot be built"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python.h: the simulated accelerator cannot be built"
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        return f"the simulated accelerator needs torch {'.'.join(map(str, OLDEST_TORCH))}, and {version} is installed"
    return None


def built() -> Path:
    """Return the library, and build it before if no build with these sources is kept. Takes about 30 s of one core.

    Processes that ask at the same time wait for one of them to build. Raises BuildFailed.
    """
    builds = _cache() / "holdfast" / "sim-accelerator"
    place = builds / _key()
    library = place / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    builds.mkdir(parents=True, exist_ok=True)
    with (builds / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=builds, prefix="building-") as room:
                made = Path(room) / library.name
                _compile(made)
                place.mkdir(exist_ok=True)
                made.rename(library)
            _forget_old(builds)
        os.utime(place)
    return library


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if os.path.isabs(given) else Path.home() / ".cache"


def _key() -> str:
    compiler = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256()
    torch = importlib.metadata.version("torch")
    for part in (torch.encode(), sys.version.encode(), compiler, " ".join(_FLAGS).encode()):
        digest.update(part + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compile(target: Path) -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations, "torch is not installed"
    torch = Path(spec.submodule_search_locations[0])
    includes = (torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    command = [
        *("g++", *_FLAGS, f"-DTORCH_EXTENSION_NAME={MODULE}", "-D_GLIBCXX_USE_CXX11_ABI=1"),
        # Warnings are for the sources here, not for torch's headers.
        *(part for include in includes for part in ("-isystem", str(include))),
        *(str(SOURCES / "module.cpp"), "-o", str(target)),
        *(f"-L{torch / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", "-lpthread"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildFailed(f"g++ ended with {result.returncode}:\n{result.stderr[-4000:]}")


def _forget_old(builds: Path) -> None:
    kept = sorted((it for it in builds.iterdir() if it.is_dir()), key=lambda it: it.stat().st_mtime, reverse=True)
    for old in kept[BUILDS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
