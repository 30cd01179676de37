"""Users that jobs have to themselves, and the directory that decides on one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.node.users.own_users import NARROW, WIDE, Exchanged, NotOwned, _maps, give, owner

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


def test_a_directory_has_the_same_id_everywhere_and_another_has_another() -> None:
    for ids in (WIDE, NARROW):
        uid = ids.of("/data/jobs/a")
        assert uid == ids.of("/data/jobs/a") != ids.of("/data/jobs/b")
        assert ids.has(uid) and not ids.has(ids.passage) and not ids.has(0) and not ids.has(65_534)
    assert WIDE.of("/data/jobs/a") == 2_015_980_608, "directories of earlier versions keep their user"


@pytest.mark.parametrize(
    ("uid_map", "wide", "narrow"),
    [("0 0 4294967295", True, True), ("0 100000 65536", False, True), ("0 1000 1", False, False)],
)
def test_ids_must_be_mapped_into_the_user_namespace(uid_map: str, wide: bool, narrow: bool) -> None:
    assert (_maps([uid_map], WIDE), _maps([uid_map], NARROW)) == (wide, narrow)


def test_a_missing_directory_has_no_owner_yet_and_ours_is_no_jobs(tmp_path: Path) -> None:
    assert owner(tmp_path / "a" / "b", WIDE) is None
    with pytest.raises(NotOwned, match=f"exists and belongs to user {os.geteuid()}"):
        owner(tmp_path, WIDE)


@as_root
def test_a_directory_is_given_and_its_owner_stays_the_jobs_user(tmp_path: Path) -> None:
    place = tmp_path / "jobs" / "a"
    user = WIDE.user(WIDE.of(str(place)), "/")
    give(place, user)
    found = place.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (user.uid, user.gid, 0o700)
    assert owner(place, WIDE) == user.uid
    assert owner(place / "deeper" / "still", WIDE) == user.uid, "what a job may exchange is its own"
    place.rename(tmp_path / "moved")
    assert owner(tmp_path / "moved", WIDE) == user.uid
    give(tmp_path / "moved", user)


@as_root
def test_a_directory_that_another_node_is_making_is_finished_and_no_other_is_taken(tmp_path: Path) -> None:
    user = WIDE.user(WIDE.of("a"), "/")
    (tmp_path / "begun").mkdir(mode=0)
    assert owner(tmp_path / "begun", WIDE) is None
    give(tmp_path / "begun", user)
    assert owner(tmp_path / "begun", WIDE) == user.uid
    (tmp_path / "ours").mkdir()
    with pytest.raises(FileExistsError):
        give(tmp_path / "ours", user)


@as_root
def test_a_link_that_a_job_made_leads_nowhere_and_one_of_root_does(tmp_path: Path) -> None:
    place, link = tmp_path / "a", tmp_path / "link"
    user = WIDE.user(WIDE.of(str(place)), "/")
    give(place, user)
    link.symlink_to("a")
    assert owner(link, WIDE) == user.uid
    link.unlink()
    link.symlink_to("/etc")
    os.chown(link, user.uid, user.gid, follow_symlinks=False)
    with pytest.raises(Exchanged, match="is a link that a job has made"):
        owner(link, WIDE)
    with pytest.raises(Exchanged):
        owner(link / "below", WIDE)
