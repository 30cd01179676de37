"""The built wheel: its contents, an installation outside the checkout, and what installing it does to the user's torch.

Nothing is downloaded: the wheel is built by the hatchling of this environment, and dependencies are this environment's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
SITE_PACKAGES = Path(pytest.__file__).parents[1]
COMMAND_LIMIT_S = 200.0

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"{int(total)} ranks run {os.path.basename(__file__)}")
dist.destroy_process_group()
"""


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    # Settings of this machine's pip may name places with wheels, which pip would take as well.
    foreign = ("HOLDFAST_", "PYTHON", "PIP_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
        cwd=cwd,
        env=environment | {"HOLDFAST_INSPECTIONS_DISABLED": "kernel", "PIP_CONFIG_FILE": os.devnull},
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory], REPOSITORY)
    (built,) = directory.glob("holdfast-*.whl")
    return built


def _environment(directory: Path) -> tuple[Path, Path]:
    """Create an empty environment; return its Python and its site-packages."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    return python, Path(
        _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], directory).strip()
    )


def _pip(python: Path, *arguments: str | Path) -> str:
    return _run([sys.executable, "-m", "pip", "--python", python, *arguments], python.parents[1])


def test_the_wheel_has_packages_migrations_and_the_description_of_the_bus_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        described = archive.read("holdfast/asyncapi.yaml")
    assert described == (REPOSITORY / "docs" / "asyncapi.yaml").read_bytes()
    assert "holdfast/migrations/env.py" in names
    versions = {path.name for path in (REPOSITORY / "migrations" / "versions").glob("*.py")}
    assert versions and versions <= {Path(name).name for name in names if name.startswith("holdfast/migrations/")}
    packages = {name.split("/")[0] for name in names if not name.startswith("holdfast-")}
    sources = {path.parent.name for path in REPOSITORY.glob("*/*/__init__.py") if path.parts[-3] == "agent"}
    sources |= {path.parent.name for path in (REPOSITORY / "services").glob("*/*/__init__.py")}
    sources |= {path.parent.name for path in (REPOSITORY / "proving").glob("*/__init__.py")}
    assert packages == {"holdfast"} | sources
    assert not [name for name in names if {"tests", "tools", "bench", "examples"} & set(name.split("/"))]
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_installed_wheel_runs_a_job_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    python, packages = _environment(tmp_path / "environment")
    _pip(python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # Dependencies without a second copy of torch. A .pth of that folder is not read, so this checkout is not found.
    (packages / "dependencies.pth").write_text(f"{SITE_PACKAGES}\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "pair.py").write_text(SCRIPT)
    imported = _run([python, "-c", "import holdfast, holdfast_agent; print(holdfast.__file__)"], outside)
    assert Path(imported.strip()).is_relative_to(tmp_path)
    holdfast = python.with_name("holdfast")
    _run([holdfast, "up", "--detach", "--nodes", "1"], outside)
    try:
        run = [holdfast, "run", "--nnodes", "1", "--nproc-per-node", "2", "--name", "pair", "pair.py"]
        assert "2 ranks run pair.py" in _run(run, outside)
        query = "select job from historian.generations"
        assert "pair" in _run([holdfast, "sql", query], outside)
    finally:
        _run([holdfast, "down"], outside)


def _metadata(directory: Path, name: str, of_version: str) -> None:
    """Write the metadata of an installed package that has no files."""
    folder = directory / f"{name.replace('-', '_')}-{of_version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {of_version}\n")
    (folder / "INSTALLER").write_text("pip\n")
    (folder / "RECORD").write_text("")


def _newest_torch(directory: Path) -> None:
    """Write a wheel that pip would take if it had to replace torch."""
    with zipfile.ZipFile(directory / "torch-99.0-py3-none-any.whl", "w") as archive:
        folder = "torch-99.0.dist-info"
        archive.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n")
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")


@pytest.mark.parametrize(
    ("installed", "is_replaced"),
    [
        ("2.9.0+cu128", False),
        ("2.9.0a0+145a3a7bda.nv25.10", False),
        ("2.16.0.dev20261101+cu130", False),
        ("2.13.0+rocm7.0", False),
        ("2.2.0", True),
    ],
)
def test_the_torch_that_is_installed_stays(wheel: Path, tmp_path: Path, installed: str, is_replaced: bool) -> None:
    python, packages = _environment(tmp_path / "environment")
    offered = tmp_path / "offered"
    offered.mkdir()
    _newest_torch(offered)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    needed = [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist:")]
    for requirement in needed:
        if requirement.marker is None and requirement.name != "torch":
            _metadata(packages, requirement.name, version(requirement.name))
    _metadata(packages, "greenlet", version("greenlet"))
    _metadata(packages, "torch", installed)
    report = _pip(
        python, "install", "--quiet", "--dry-run", "--no-index", "--find-links", offered, "--report", "-", wheel
    )
    taken = {item["metadata"]["name"] for item in json.loads(report)["install"]}
    assert taken == ({"holdfast", "torch"} if is_replaced else {"holdfast"})
