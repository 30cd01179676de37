"""A holdfast.toml that another user has put where a command runs is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.settings.load import ConfigRefused, load


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[pool]\nsize = 3\n")
    monkeypatch.chdir(tmp_path)
    assert load({})[0].pool.size == 3
    os.chown(file, 54_321, 54_321)
    with pytest.raises(ConfigRefused, match=r"belongs to another user \(uid 54321\).*HOLDFAST_CONFIG=holdfast.toml"):
        load({})
    assert load({"HOLDFAST_CONFIG": "holdfast.toml"})[0].pool.size == 3
