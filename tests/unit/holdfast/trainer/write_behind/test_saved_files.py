"""Which of memory and disk has the right file after a restart."""

from __future__ import annotations

from itertools import product

import msgspec

from holdfast.trainer.write_behind.saved_files import (
    DiskState,
    FileRecord,
    JournalEntry,
    Kind,
    Recovery,
    SavedFile,
    Saves,
    Verdict,
    decode,
    decode_journal,
    encode,
    encode_journal,
    lost_paths,
    recovery,
    verdict,
)

OLD, NEW = DiskState(1, 100, 1_000), DiskState(2, 100, 2_000)
JOURNAL = JournalEntry(generation=2, step=7, world_size=4, saved_at_ns=5, files={"/a": OLD, "/b": None})


def test_memory_counts_only_while_the_disk_is_as_it_was_before_the_save() -> None:
    assert verdict(None, None, is_written=False) is Verdict.WRITE
    assert verdict(OLD, OLD, is_written=False) is Verdict.WRITE
    # Whoever changed it since, a later save or a person, has the last word.
    assert verdict(OLD, NEW, is_written=False) is Verdict.CHANGED
    assert verdict(None, NEW, is_written=False) is Verdict.CHANGED
    assert verdict(OLD, None, is_written=False) is Verdict.REMOVED


def test_a_file_that_reached_the_disk_never_comes_back() -> None:
    for before, now in product((None, OLD), (None, OLD, NEW)):
        assert verdict(before, now, is_written=True) is Verdict.WRITTEN


def test_the_newest_save_in_memory_is_written_if_the_journal_does_not_know_it_on_the_disk() -> None:
    assert recovery((2, 7), JOURNAL) == Recovery(writes=True)
    # It was sealed, and its rank was killed before its journal had it.
    assert recovery((2, 8), JOURNAL) == Recovery(writes=True)
    assert recovery((3, 1), JOURNAL) == Recovery(writes=True)
    # The journal is lost with its disk.
    assert recovery((2, 7), None) == Recovery(writes=True)
    assert recovery((2, 7), msgspec.structs.replace(JOURNAL, is_written=True)) == Recovery()


def test_a_save_that_was_answered_and_is_nowhere_is_lost() -> None:
    lost = Recovery(lost=("/a", "/b"))
    assert recovery(None, JOURNAL) == lost
    # An older one is not written in its place: it had reached the disk before this one began.
    assert recovery((2, 6), JOURNAL) == lost
    assert recovery((1, 9), JOURNAL) == lost
    assert recovery(None, None) == Recovery()
    assert recovery(None, msgspec.structs.replace(JOURNAL, is_written=True)) == Recovery()


def test_a_path_that_has_changed_since_is_not_called_lost() -> None:
    assert lost_paths(JOURNAL.files, {"/a": OLD, "/b": None}) == ["/a", "/b"]
    assert lost_paths(JOURNAL.files, {"/a": NEW, "/b": None}) == ["/b"]
    assert lost_paths(JOURNAL.files, {"/a": None, "/b": NEW}) == []


def test_notes_and_journal_survive_their_encoding() -> None:
    file = SavedFile(
        path="/a/ckpt.pt",
        kind=Kind.TORCH,
        records=(FileRecord("data.pkl", data=b"\x80"), FileRecord("version", data=b"3"), FileRecord("data/0", 0)),
        nbytes=12,
        before=OLD,
        mode=0o640,
        after=("/b",),
    )
    saves = Saves(files=(file,), saved_at_ns=9)
    assert decode(encode(saves)) == saves
    assert decode_journal(encode_journal(JOURNAL)) == JOURNAL
