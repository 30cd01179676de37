"""Whether another user could exchange a part of a path, and where the cluster of one run lies then."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.cli.connect.own_cluster import _place
from holdfast.node.users.exchangeable import others_part


def test_each_part_belongs_to_this_user_or_root_and_keeps_others_from_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "b" / "missing" / "c"
    path.parents[1].mkdir(parents=True)
    assert others_part(path) is None
    (tmp_path / "a").chmod(0o1777)
    assert others_part(path) is None, "in a sticky directory others rename only what is theirs"
    (tmp_path / "a").chmod(0o777)
    assert others_part(path) == str(tmp_path / "a")
    (tmp_path / "a").chmod(0o755)
    (tmp_path / "link").symlink_to("a/b")
    assert others_part(tmp_path / "link" / "c") is None
    if os.geteuid() == 0:
        os.lchown(tmp_path / "link", 1000, 1000)
        assert others_part(tmp_path / "link" / "c") == str(tmp_path / "link")
        os.chown(tmp_path / "a", 1000, 1000)
        assert others_part(path) == str(tmp_path / "a")


def test_the_cluster_of_one_run_keeps_its_passwords_where_no_other_user_can_exchange_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = tmp_path / ".holdfast"
    assert _place(directory, "gpt") == directory / "runs" / "gpt"
    (directory / "runs").chmod(0o777)
    place = _place(directory, "gpt")
    assert place.parent == tmp_path and place.name.startswith("holdfast-gpt-") and place.stat().st_mode & 0o777 == 0o700
