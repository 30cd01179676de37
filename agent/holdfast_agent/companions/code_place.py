"""The directory in which ranks run their code version: the path of its source tree, or the version's own directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.bounded_calls import in_thread
from holdfast.code.in_place import SourceTree
from holdfast.code.manifest import InvalidManifest
from holdfast.code.unpack import WrongContent
from holdfast.node.reach import closed_to_others
from holdfast.node.users.job_user import JobUser
from holdfast.orders.node import Placement
from holdfast_agent.files.code_store import CodeStore
from holdfast_agent.zygote.wire import Cover

COMPARED_WITHIN_S = 2.0
"""A source tree on a file system that hangs must not hold the agent."""
HOLDS_S = 1.0
"""Time after its begin in which a comparison is used: an edit of the tree meanwhile is not noticed."""

log = structlog.get_logger(__name__)


class CodePlace(NamedTuple):
    """`moved_to`: the version's directory, if ranks run the script there; `cover`: files to mount over the tree's."""

    moved_to: Path | None = None
    cover: Cover | None = None


class _Comparison(NamedTuple):
    """A comparison that was begun."""

    of: tuple[str, str]
    """The tree and the version."""
    began: float
    differing: Future[tuple[str, ...] | None]
    """The result to come, as `SourceTree.differing` has it."""


class CodePlaces:
    """Compares versions with their source trees, whose state it remembers."""

    def __init__(self, code: CodeStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._code = code
        self._clock = clock
        self._tree: tuple[str, SourceTree] = ("", SourceTree(""))
        self._begun: _Comparison | None = None

    def expect(self, placement: Placement | None) -> None:
        """Begin to compare for ranks that may start soon: a tree of thousands of files takes a tenth of a restart."""
        if placement is not None and placement.code_version and placement.purpose != "checks":
            self._compare(placement.job.code_root, placement.code_version)

    def place(self, placement: Placement, user: JobUser | None) -> CodePlace:
        """Return where ranks of this user run the placement's version."""
        job, version = placement.job, placement.code_version
        if not version or placement.purpose == "checks":
            return CodePlace()
        directory, root = self._code.place(job.name, version), job.code_root
        if user is not None and closed_to_others(Path(root)) is not None:
            return self._copy(job.name, version)
        try:
            differing = self._compare(root, version).result(COMPARED_WITHIN_S)
        except (OSError, InvalidManifest, TimeoutError) as error:
            log.warning("ranks run a copy of the code", root=root, reason=str(error) or type(error).__name__)
            self._tree = "", SourceTree("")
            return self._copy(job.name, version)
        finally:
            self._begun = None
        if differing is None:
            return self._copy(job.name, version)
        if not differing:
            return CodePlace()
        self._copy(job.name, version)
        return CodePlace(cover=Cover(root=root, place=str(directory), files=differing))

    def _compare(self, root: str, version: str) -> Future[tuple[str, ...] | None]:
        """Return the result to come of a comparison that has just begun, or a moment ago."""
        begun, now = self._begun, self._clock()
        if begun is not None and begun.of == (root, version) and now - begun.began < HOLDS_S:
            return begun.differing
        if self._tree[0] != root or (begun is not None and not begun.differing.done()):
            # Two threads never share a tree.
            self._tree = root, SourceTree(root)
        tree = self._tree[1]
        differing = in_thread(lambda: tree.differing(self._code.manifest(version)))
        self._begun = _Comparison((root, version), now, differing)
        return differing

    def _copy(self, job: str, version: str) -> CodePlace:
        """Return the place of the copy, which is made now if it is not there."""
        try:
            return CodePlace(moved_to=self._code.complete(job, version))
        except (OSError, InvalidManifest, WrongContent) as error:
            log.error("the copy of the code is not made", job=job, reason=str(error))
            return CodePlace(moved_to=self._code.place(job, version))
