"""Reader of the ranks' training logs in its own thread: file systems may hang, the agent must not."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext

import msgspec
import structlog

from holdfast_agent.training_logs.followed_log import FollowedLog
from holdfast_agent.training_logs.open_files import FileKey, FoundLog, logs_at, matching_logs, open_logs
from holdfast_agent.training_logs.readings import StepReading
from holdfast_agent.training_logs.rights import FileRights, held, of_ranks
from holdfast_agent.training_logs.tags import Tags
from holdfast_agent.zygote.wire import Fence

READ_EVERY_S = 1.0
SEARCH_EVERY = 5
"""Reads between two searches for new files; shortly after a crew starts every read searches."""
SEARCHES_AT_FIRST = 20
LOGS_MAX = 256
PENDING_MAX = 20_000
"""Maximum number of readings that wait to be taken; the oldest are dropped."""

log = structlog.get_logger(__name__)


class ReaderFailed(RuntimeError):
    """The reading thread has failed."""


class WatchedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks whose logs are read: their order, processes, and the tags of their job. Besides their open files,
    `paths` are logs that they reported, `patterns` files that the user named, relative to `folder`.
    """

    fence: Fence
    pids: dict[int, int]
    tags: Tags
    user: str = ""
    """Name of their user; "": it may be the agent's."""
    paths: dict[str, int] = {}
    folder: str = ""
    patterns: tuple[str, ...] = ()
    first_rank: int = 0


class LogNews(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers from one log since the last read; `offset` is the new read position."""

    key: FileKey
    rank: int
    kind: str
    path: str
    tags: dict[str, str]
    readings: tuple[StepReading, ...]
    offset: int


class LogReader:
    """The thread. The loop calls `watch` and `take`, which never wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._watched: WatchedRanks | None = None
        self._offsets: dict[FileKey, int] = {}
        self._news: list[LogNews] = []
        self._round = 0
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def watch(self, watched: WatchedRanks | None, offsets: Mapping[FileKey, int] | None = None) -> None:
        """Read these logs from now on: from `offsets` where given, else from the present positions."""
        with self._lock:
            is_new = watched is None or self._watched is None or watched.fence != self._watched.fence
            self._watched = watched
            if is_new:
                self._round += 1
                self._news.clear()
            if offsets is not None:
                self._offsets = dict(offsets)
        if watched is not None and self._thread is None:
            # A daemon thread: it may hang in a read, and must not keep the agent from exiting.
            self._thread = threading.Thread(target=self._serve, name="training logs", daemon=True)
            self._thread.start()
        self._changed.set()

    def take(self) -> list[LogNews]:
        """Return the numbers read since the last call. Raises ReaderFailed if the thread has ended by an error."""
        with self._lock:
            if self._failure is not None:
                raise ReaderFailed("the reader of training logs has failed") from self._failure
            taken, self._news = self._news, []
        return taken

    def _serve(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - a thread's error would only be printed; `take` raises it
            with self._lock:
                self._failure = error

    def _run(self) -> None:
        followed: dict[FileKey, FollowedLog] = {}
        looks = 0
        known_round = -1
        while True:
            with self._lock:
                watched, here = self._watched, self._round
            self._changed.clear()
            if here != known_round:
                known_round, looks = here, 0
                self._close(followed, set())
            if watched is None:
                self._changed.wait()
                continue
            if looks < SEARCHES_AT_FIRST or looks % SEARCH_EVERY == 0:
                self._search(watched, followed, here)
            looks += 1
            for key, one in list(followed.items()):
                self._read(key, one, followed, here)
            self._changed.wait(READ_EVERY_S)

    def _search(self, watched: WatchedRanks, followed: dict[FileKey, FollowedLog], here: int) -> None:
        found: dict[FileKey, FoundLog] = {}
        rights = of_ranks(watched.pids.values(), watched.user)
        for one in (*open_logs(watched.pids), *_named(watched, rights)):
            found.setdefault(one.key, one)
        for key in followed.keys() - found.keys():
            # Its writer has closed it: this is its last content.
            self._read(key, followed[key], followed, here)
        self._close(followed, found.keys() & followed.keys())
        for key, one in found.items():
            if rights is None or key in followed or len(followed) >= LOGS_MAX:
                continue
            try:
                with held(rights) if one.is_named else nullcontext():
                    followed[key] = FollowedLog(one, watched.tags, self._offsets.get(key, 0), rights)
            except OSError as error:
                log.warning("a training log cannot be opened", file=one.path, reason=error.strerror or str(error))

    def _read(self, key: FileKey, one: FollowedLog, followed: dict[FileKey, FollowedLog], here: int) -> None:
        try:
            readings = one.read()
        except OSError as error:
            log.warning("a training log cannot be read", file=one.found.path, reason=error.strerror)
            followed.pop(key).close()
            return
        if not readings:
            return
        news = LogNews(
            key=key,
            rank=one.found.rank,
            kind=one.kind,
            path=one.found.path,
            tags=one.tags,
            readings=tuple(readings),
            offset=one.offset,
        )
        with self._lock:
            if here != self._round:
                return
            self._offsets[key] = one.offset
            self._news.append(news)
            while sum(len(entry.readings) for entry in self._news) > PENDING_MAX:
                del self._news[0]

    def _close(self, followed: dict[FileKey, FollowedLog], kept: set[FileKey]) -> None:
        for key in [key for key in followed if key not in kept]:
            one = followed.pop(key)
            with self._lock:
                self._offsets[key] = one.offset
            one.close()


def _named(watched: WatchedRanks, rights: FileRights | None) -> list[FoundLog]:
    """Return the logs that the script or its user named, as the ranks themselves may see them."""
    if rights is None:
        return []
    try:
        with held(rights):
            named = matching_logs(watched.patterns, watched.folder, watched.first_rank)
            return [*logs_at(watched.paths), *named]
    except OSError as error:
        log.warning("training logs that were named are not read", reason=error.strerror)
        return []
