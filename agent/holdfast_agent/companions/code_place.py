"""Where ranks run their code version: at the path of its source tree, or in the version's own directory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.bounded_calls import within
from holdfast.code.in_place import SourceTree
from holdfast.code.manifest import InvalidManifest
from holdfast.code.unpack import WrongContent
from holdfast.node.job_user import JobUser
from holdfast.node.reach import closed_to_others
from holdfast.orders.node import Placement
from holdfast_agent.files.code_store import CodeStore
from holdfast_agent.zygote.wire import Cover

COMPARED_WITHIN_S = 2.0
"""A source tree on a file system that hangs must not hold the agent."""

log = structlog.get_logger(__name__)


class CodePlace(NamedTuple):
    """`moved_to`: the version's directory, if ranks run the script there; `cover`: files to mount over the tree's."""

    moved_to: Path | None = None
    cover: Cover | None = None


class CodePlaces:
    """Compares versions with their source trees, whose state it remembers."""

    def __init__(self, code: CodeStore) -> None:
        self._code = code
        self._tree: tuple[str, SourceTree] = ("", SourceTree(""))

    def place(self, placement: Placement, user: JobUser | None) -> CodePlace:
        """Return where ranks of this user run the placement's version."""
        job, version = placement.job, placement.code_version
        if not version or placement.purpose == "checks":
            return CodePlace()
        directory, root = self._code.place(job.name, version), job.code_root
        if user is not None and closed_to_others(Path(root)) is not None:
            return self._copy(job.name, version)
        if self._tree[0] != root:
            self._tree = root, SourceTree(root)
        tree = self._tree[1]
        try:
            manifest = self._code.manifest(version)
            differing = within(lambda: tree.differing(manifest), COMPARED_WITHIN_S)
        except (OSError, InvalidManifest, TimeoutError) as error:
            log.warning("ranks run a copy of the code", root=root, reason=str(error) or type(error).__name__)
            self._tree = "", SourceTree("")
            return self._copy(job.name, version)
        if differing is None:
            return self._copy(job.name, version)
        if not differing:
            return CodePlace()
        self._copy(job.name, version)
        return CodePlace(cover=Cover(root=root, place=str(directory), files=differing))

    def _copy(self, job: str, version: str) -> CodePlace:
        """Return the place of the copy, which is made now if it is not there."""
        try:
            return CodePlace(moved_to=self._code.complete(job, version))
        except (OSError, InvalidManifest, WrongContent) as error:
            log.error("the copy of the code is not made", job=job, reason=str(error))
            return CodePlace(moved_to=self._code.place(job, version))
