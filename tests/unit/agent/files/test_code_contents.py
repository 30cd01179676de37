"""Contents of code on the disk of a node, which several versions share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast_agent.files.code_store import CodeStore

ROUNDS = 100


def store_at(root: Path) -> CodeStore:
    return CodeStore("n", root, 1.0, lambda _: None, lambda _: None, lambda *_: None)


def test_two_versions_that_share_files_may_be_fetched_at_once(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    contents = {f"{number:064x}": b"x" * 20_000 for number in range(4)}
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            for kept in [threads.submit(store._keep, contents) for _ in range(2)]:
                kept.result()
    assert {path.name: path.read_bytes() for path in (tmp_path / ".contents").iterdir()} == contents


def test_what_a_killed_agent_had_half_written_is_removed(tmp_path: Path) -> None:
    store_at(tmp_path)._keep({"a": b"1"})
    half = tmp_path / ".contents" / "b.part"
    half.write_bytes(b"")
    store_at(tmp_path)
    assert [path.name for path in half.parent.iterdir()] == ["a"]
