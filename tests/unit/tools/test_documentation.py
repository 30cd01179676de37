"""The documentation: its links and the files that it names exist, and its lines are no longer than 120."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS

REPOSITORY = Path(__file__).parents[3]
LINE_CHARS_MAX = 120
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)(?:::\w+)?`")
_FOLDER = re.compile(r"`((?:holdfast|agent|services|tests|tools|bench|examples|deploy|docs|migrations)/[\w./-]+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"```.*?```", re.DOTALL)
_NOT_OURS = re.compile(r"^(?:train|pair|script|sitecustomize|model|data|layers|distributed_c10d|my_\w+)\.py$|^torch/")
"""Files of examples in the text, of users and of PyTorch."""


@cache
def _tracked() -> tuple[str, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file())


def _pages() -> list[Path]:
    return [REPOSITORY / name for name in _tracked() if name.endswith(".md")]


def _wrapped() -> list[Path]:
    return [page for page in _pages() if page.parts[-2] != "tests"]


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_python_files_that_are_named_exist(page: Path) -> None:
    """A path is relative to the repository or the page; a bare name may lie anywhere below the page's folder."""
    names = {name for name in _NAMED.findall(page.read_text()) if not _NOT_OURS.search(name)}
    folder = page.parent.relative_to(REPOSITORY).as_posix()
    within = "" if folder in (".", "docs", "docs/adr") else f"{folder}/"
    near = ["/" + name for name in _tracked() if name.startswith(within)]
    missing = [name for name in names if f"/{name}" not in near and not any(it.endswith(f"/{name}") for it in near)]
    missing = [name for name in missing if name not in _tracked() and not (page.parent / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_folders_that_are_named_exist(page: Path) -> None:
    missing = [name for name in _FOLDER.findall(page.read_text()) if not (REPOSITORY / name).exists()]
    assert not [name for name in missing if "NAME" not in name]


@pytest.mark.parametrize("page", _wrapped(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_are_short_enough_to_read(page: Path) -> None:
    prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text()).splitlines()
    long = [
        number
        for number, line in enumerate(prose, 1)
        if len(line) > LINE_CHARS_MAX and not line.lstrip().startswith("|") and "](" not in line[LINE_CHARS_MAX - 60 :]
    ]
    assert not long


def test_every_command_has_a_row() -> None:
    page = (REPOSITORY / "docs" / "commands.md").read_text()
    names = [name for commands in COMMANDS.values() for name in commands]
    assert not [name for name in names if f"`holdfast {name}" not in page and f", `{name} " not in page]


def test_every_page_is_listed() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    pages = [path.name for path in (REPOSITORY / "docs").glob("*.md") if path.name != "README.md"]
    assert not [name for name in pages if f"]({name})" not in index]
