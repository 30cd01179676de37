"""What a version of the code is, and what is none: a manifest comes from anybody on the bus."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.code.difference import changes_text, difference, lines, unified_diff
from holdfast.code.manifest import (
    FILE_BYTES_MAX,
    FILES_MAX,
    InvalidManifest,
    Manifest,
    ManifestEntry,
    decode,
    digest_of,
    encode,
    manifest_of,
    target_problem,
    version_of,
)
from holdfast.code.relocation import relocate, relocate_search_path
from holdfast.code.unpack import WrongContent, damage, unpack


def file(path: str, content: bytes = b"x", **fields: bool) -> ManifestEntry:
    return ManifestEntry(path=path, sha256=digest_of(content), size_bytes=len(content), **fields)


def contents(*known: bytes) -> dict[str, bytes]:
    return {digest_of(content): content for content in known}


def forged(*entries: ManifestEntry) -> bytes:
    return msgspec.json.encode(Manifest(entries=entries))


def test_the_same_tree_has_the_same_name_in_whatever_order_it_was_read() -> None:
    one, two = file("a/b.py"), file("a.py", is_executable=True)
    assert version_of(manifest_of([one, two])) == version_of(manifest_of([two, one]))
    assert decode(encode(manifest_of([one, two]))) == manifest_of([two, one])
    names = {
        version_of(manifest_of([entry]))
        for entry in (file("a"), file("b"), file("a", b"y"), file("a", is_executable=True))
    }
    assert len(names) == 4


HOSTILE = {
    "absolute": [file("/etc/passwd")],
    "above": [file("../x")],
    "above, hidden": [file("a/../../x")],
    "here": [file("./x")],
    "empty part": [file("a//x")],
    "no name": [file("")],
    "control characters": [file("a\nb")],
    "too long": [file("x" * 2000)],
    "twice": [file("a"), file("a", b"y")],
    "wrong order": [file("b"), file("a")],
    "below a file": [file("a"), file("a/b")],
    "below a link": [ManifestEntry(path="a", target="b"), file("a/x"), file("b/y")],
    "link to the root": [ManifestEntry(path="a", target="/etc")],
    "link above": [ManifestEntry(path="a", target="..")],
    "link above, from below": [ManifestEntry(path="a/b", target="../../x")],
    "link that turns": [ManifestEntry(path="a/b", target="c/../../../x")],
    "link to nothing": [ManifestEntry(path="a", target="")],
    "no hash": [ManifestEntry(path="a", sha256="../../x", size_bytes=1)],
    "a bomb": [ManifestEntry(path="a", sha256="0" * 64, size_bytes=FILE_BYTES_MAX + 1)],
    "a negative size": [ManifestEntry(path="a", sha256="0" * 64, size_bytes=-1)],
    "bombs": [ManifestEntry(path=f"a{n}", sha256="0" * 64, size_bytes=FILE_BYTES_MAX) for n in range(5)],
    "nothing": [],
    "too many": [file(f"{n:06}") for n in range(FILES_MAX + 1)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_reach_out_of_its_directory_or_over_the_limits_is_no_manifest(kind: str) -> None:
    with pytest.raises(InvalidManifest):
        decode(forged(*HOSTILE[kind]))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"entries":[]}', b'{"format":2,"entries":[]}', b"[" * 100_000])
def test_what_is_no_manifest_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(InvalidManifest, match=r"\w"):
        decode(body)


_parts = st.sampled_from(["a", "b", "..", "l", "c"])
_paths = st.lists(_parts, min_size=1, max_size=4).map("/".join)


@settings(max_examples=60)
@given(st.dictionaries(_paths, _paths, max_size=5), _paths)
def test_no_tree_that_is_let_pass_leads_out_of_itself(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str
) -> None:
    entries = [ManifestEntry(path=at, target=target) for at, target in links.items()]
    try:
        manifest = manifest_of([*entries, file(path, b"1")])
    except InvalidManifest:
        return
    root = tmp_path_factory.mktemp("tree").resolve() / "root"
    unpack(manifest, contents(b"1").__getitem__, root)
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            real = os.path.realpath(os.path.join(folder, name))
            assert real == str(root) or real.startswith(f"{root}/")


def test_links_within_the_tree_are_let_pass() -> None:
    assert not target_problem("a/b/c", "../../d")
    assert not target_problem("a", "b/c")
    assert target_problem("a/b", "../../c") and target_problem("a", "b/../c")


def test_a_version_is_laid_out_whole_with_its_modes_and_links(tmp_path: Path) -> None:
    manifest = manifest_of(
        [file("train.py", b"1"), file("bin/go", b"2", is_executable=True), ManifestEntry(path="link", target="bin/go")]
    )
    target = tmp_path / "deep" / "version"
    unpack(manifest, contents(b"1", b"2").__getitem__, target)
    assert (target / "train.py").read_bytes() == b"1" and (target / "link").read_bytes() == b"2"
    assert (target / "bin/go").stat().st_mode & 0o777 == 0o555
    assert (target / "train.py").stat().st_mode & 0o777 == 0o444
    assert not list(damage(manifest, target))
    (target / "train.py").chmod(0o644)
    (target / "train.py").write_bytes(b"3")
    (target / "link").unlink()
    assert set(damage(manifest, target)) == {"train.py", "link"}


def test_wrong_content_leaves_nothing_behind(tmp_path: Path) -> None:
    manifest = manifest_of([file("a", b"1"), file("b", b"2")])
    lies = contents(b"1") | {digest_of(b"2"): b"3"}
    with pytest.raises(WrongContent, match="b: 1 bytes that are not") as wrong:
        unpack(manifest, lies.__getitem__, tmp_path / "version")
    assert wrong.value.digest == digest_of(b"2") and not list(tmp_path.iterdir())


def test_what_is_beside_the_code_is_reached_where_it_lies(tmp_path: Path) -> None:
    origin, target = tmp_path / "origin", tmp_path / "version"
    (origin / "data").mkdir(parents=True)
    manifest = manifest_of([file("train.py"), ManifestEntry(path="up", target="sub"), file("sub/x.py")])
    outside = ("data", "sub/weights.bin", "train.py", "train.py/below", "up/y", "../etc", "/etc")
    unpack(manifest, contents(b"x").__getitem__, target, outside=outside, outside_root=origin)
    (target / "data" / "new").write_text("written beside the code")
    assert (origin / "data" / "new").exists()
    assert (target / "sub/weights.bin").is_symlink() and not (target / "train.py").is_symlink()
    assert sorted(path.name for path in (target / "sub").iterdir()) == ["weights.bin", "x.py"]


def test_a_difference_names_what_changed() -> None:
    old = manifest_of([file("a"), file("b"), file("c"), file("run")])
    new = manifest_of([file("a"), file("b", b"2"), file("d"), file("run", is_executable=True)])
    changes = difference(old, new)
    assert (changes.added, changes.changed, changes.removed, changes.count) == (("d",), ("b", "run"), ("c",), 4)
    assert changes_text(changes) == "b, run, d and 1 more"
    assert changes_text(difference(old, old)) == "no file differs"
    many = manifest_of(file(f"{number:04}") for number in range(200))
    assert (len(difference(old, many).added), difference(old, many).count) == (50, 204)


def test_lines_are_counted_in_text_alone() -> None:
    counted = lines("a.py", b"1\n2\n3\n", b"1\n3\n4\n5\n")
    assert (counted.added, counted.removed) == (2, 1)
    assert lines("a", b"\0", b"1").added is None
    assert unified_diff("a.py", b"1\n", b"2\n")[2:] == ["@@ -1 +1 @@", "-1", "+2"]
    assert "not text" in unified_diff("a", b"\xff", b"1")[0]


def test_paths_in_the_tree_move_and_no_others() -> None:
    assert relocate("/src/a/train.py", "/src", "/code/v", "/") == "/code/v/a/train.py"
    assert relocate("a", "/src", "/code/v", "/src/sub") == "/code/v/sub/a"
    assert relocate("/src", "/src", "/code/v", "/") == "/code/v"
    assert relocate("/srcs/a", "/src", "/code/v", "/") == "/srcs/a"
    assert relocate("/src/../etc", "/src", "/code/v", "/") == "/src/../etc"
    search = [".", "/usr/lib", "", "/src/lib", "/src/.venv/lib/python3.13/site-packages"]
    led = relocate_search_path(search, "/src", "/v", "/src", {"/v", "/v/lib"}.__contains__)
    assert led == ["/v", "/usr/lib", "", "/v/lib", "/src/.venv/lib/python3.13/site-packages"]
