"""A Python environment with the packages that strangers' scripts import, beside the project's torch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import torch
from report import tell

PIP_LIMIT_S = 600.0
REASON_CHARS_MAX = 200
_SHOW_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def default_place() -> Path:
    """Return where the environment is kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "holdfast" / f"strangers-{sys.version_info.major}.{sys.version_info.minor}"


def prepare(place: Path, packages: Iterable[str]) -> tuple[Path, dict[str, str]]:
    """Make the environment, or complete it. Returns its Python, and the reason for each package that it lacks."""
    python = place / "bin" / "python"
    if not python.exists():
        tell(f"making an environment in {place}; torch stays the project's")
        venv.create(place, with_pip=False, symlinks=True)
    # A path in a .pth file is only searched: the project's own .pth files, and with them its source, stay out of it.
    (library,) = (place / "lib").glob("python*/site-packages")
    (library / "torch_of_the_project.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    wanted = sorted(set(packages))
    there = versions(python, wanted)
    missing = {name: reason for name in wanted if name not in there and (reason := _install(python, name))}
    return python, missing


def versions(python: Path, packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that a Python has."""
    import json

    done = subprocess.run([str(python), "-c", _SHOW_VERSIONS, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _install(python: Path, package: str) -> str:
    """Install one package. Returns why it cannot be had, "" if it is there."""
    tell(f"installing {package}")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-input", package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PIP_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {PIP_LIMIT_S:g} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else f"pip: {lines[-1] if lines else done.returncode}"[:REASON_CHARS_MAX]
