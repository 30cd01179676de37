"""What a process that forks for hours knows of its code on disk."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from holdfast.code.loaded import LoadedCode


def test_code_that_has_changed_on_disk_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "holdfast_changing.py"
    module.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = LoadedCode()
    importlib.import_module("holdfast_changing")
    code.note()
    assert not code.has_changed()
    module.write_text("x = 22\n")
    assert code.has_changed()
    module.unlink()
    assert code.has_changed()
    monkeypatch.delitem(sys.modules, "holdfast_changing")
